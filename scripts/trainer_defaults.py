"""Writes the defaults.toml of an importer from the other trainer itself.

python -m scripts.trainer_defaults trl       in an environment with trl and peft
python -m scripts.trainer_defaults verl DIR  of a clone of verl
"""

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

CONVERTERS = Path(__file__).parents[1] / "rlrun" / "converters"


def main(trainer: str, *arguments: str) -> None:
    """Writes the file of one trainer."""
    text = {"trl": trl_defaults, "verl": verl_defaults}[trainer](*arguments)
    (CONVERTERS / trainer / "defaults.toml").write_text(text, "utf-8")


def trl_defaults() -> str:
    """Returns the fields of `GRPOConfig` and of what else `trl grpo` and GRPOTrainer take."""
    import inspect

    from peft import LoraConfig
    from trl import DatasetMixtureConfig, GRPOConfig, GRPOTrainer, ModelConfig
    from trl.scripts.grpo import GRPOScriptArguments

    rows: dict[str, Any] = {}
    tables: list[str] = []
    parts = [(GRPOConfig, ""), (GRPOScriptArguments, ""), (ModelConfig, ""), (DatasetMixtureConfig, "")]
    for kind, prefix in [*parts, (LoraConfig, "peft_config.")]:
        for field in dataclasses.fields(kind):
            rows[prefix + field.name] = _default(field)
            if "dict" in str(field.type):
                tables.append(prefix + field.name)
    for name in list(inspect.signature(GRPOTrainer.__init__).parameters)[1:]:
        if name != "args":
            rows.setdefault(name, None)
    source = f"trl {version('trl')}"
    about = f"with transformers {version('transformers')} and peft {version('peft')}"
    return _document(source, about, rows, [*tables, "quantization_config"])


def verl_defaults(folder: str) -> str:
    """Returns the keys of verl's own generated configuration, with the interpolations as written there."""
    commit = subprocess.run(
        ["git", "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    path = "verl/trainer/config/_generated_ppo_trainer.yaml"
    content = subprocess.run(
        ["git", "-C", folder, "show", f"HEAD:{path}"], check=True, capture_output=True, text=True
    ).stdout
    rows = dict(_leaves(yaml.safe_load(content)))
    tables = [name for name, value in rows.items() if value == {}]
    rows = {name: None if value in ("???", {}) else value for name, value in rows.items()}
    return _document(f"verl {commit[:7]}", path, rows, tables)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif name != "_target_":
            yield prefix + name, value


def _default(field: Any) -> Any:
    """Returns a field's default as a plain value; None for one that TOML has no value for."""
    value = field.default
    if value is dataclasses.MISSING:
        factory = field.default_factory
        value = None if factory is dataclasses.MISSING else factory()
    value = value.value if isinstance(value, Enum) else value
    return value if isinstance(value, bool | int | float | str | list) and value != [] else None


def _document(source: str, about: str, rows: Mapping[str, Any], tables: Iterable[str]) -> str:
    """Returns the text of defaults.toml."""
    from rlrun.specs.reading.reference import as_toml

    lines = ["# Written by `python -m scripts.trainer_defaults`; do not edit.", f"# {about}"]
    lines += [f"source = {as_toml(source)}"]
    for title, names in (
        ("unset", [name for name, value in rows.items() if value is None]),
        ("open", sorted(set(tables))),
    ):
        lines += [f"{title} = [", *(f"    {as_toml(name)}," for name in names), "]"]
    lines += ["", "[defaults]"]
    for name, value in rows.items():
        if value is not None:
            lines.append(f"{as_toml(name) if '.' in name else name} = {as_toml(value)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
