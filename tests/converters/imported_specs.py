"""Checks of imported specs: each validates once its placeholders are replaced by stubs."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft
from rlrun.converters.imports.spec_draft import spec_toml
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems.findings import SpecError

CONFIG = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 65536,
}
ROW = {"prompt": "1 + 1", "label": "2"}


def other_than(default: Any) -> Any:
    """Returns a value of the same type that is not the default."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return 2 * default if default > 0 else 2
    return default / 2 if isinstance(default, float) else "other"


def problems(draft: ImportDraft, folder: Path) -> list[str]:
    """Returns what `rlrun validate` reports of a spec whose paths are replaced by stubs."""
    values = deepcopy(draft.values)
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (model / "tokenizer.json").write_text("{}", "utf-8")
    values["model"]["path"] = str(model)
    for name in ("revision", "adapter"):
        values["model"].pop(name, None)
    rows = folder / "rows.jsonl"
    rows.write_text(f"{json.dumps(ROW)}\n" * 2, "utf-8")
    _use_rows(values["data"], str(rows))
    for section in values.get("eval", {}).get("datasets", []):
        _use_rows(section, str(rows), held_out=True)
    for reward in values.get("rewards", []):
        if ".py:" in reward["type"]:
            reward |= {"type": "random"}
    file = folder / "job.toml"
    file.write_text(spec_toml(values, {}, "test"), "utf-8")
    try:
        load_checked_spec([file])
    except SpecError as error:
        return [each.message for each in error.problems]
    return []


def unaccounted(draft: ImportDraft) -> set[str]:
    """Returns the settings that are neither in a comment of a key that is set nor in a note."""
    commented = {
        word.strip(",:")
        for key, comment in draft.comments.items()
        if _is_set(draft, key)
        for word in comment.split()
    }
    noted = {setting.name for setting, _ in draft.setting_notes}
    return set(draft.settings) - commented - noted


def _is_set(draft: ImportDraft, key: str) -> bool:
    value: Any = draft.values
    for part in key.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError):
            return False
    return True


def _use_rows(section: dict[str, Any], path: str, *, held_out: bool = False) -> None:
    """Replaces a data source that has to be downloaded or installed by a file."""
    for name in (
        "split",
        "revision",
        "taskset",
        "config",
        "size",
        "sources",
        *(() if held_out else ("name",)),
    ):
        section.pop(name, None)
    section |= {"type": "jsonl", "path": path}
