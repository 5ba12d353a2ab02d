"""The text of the spec that `rlrun init` writes: starter.toml, filled in with what the user wants."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rlrun.plugins.data.columns import LABEL_NAMES, PROMPT_NAMES, likely
from rlrun.plugins.registry import load
from rlrun.specs.paths import absolute_path

_STARTER = Path(__file__).parent / "starter.toml"
_ASKED = 'prompt_template = "{question}\\nGive the final answer in <answer> tags."\n'
_ANSWER = (
    'answer_pattern = "<answer>(.*?)</answer>"\n'
    "threshold = 1.0                # right or wrong: no credit for what merely contains the answer\n"
)
_LEAST_BATCH, _SAMPLES, _USUAL_TOKENS = 32, 8, 512


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user wants."""

    name: str
    folder: Path
    model: str
    task: str | None
    data: Path | None
    gpus: int
    nodes: int
    algorithm: str


def spec_text(chosen: Choices) -> str:
    """The file. ValueError for what no TOML string holds, or for data that is not there."""
    for value in (chosen.model, chosen.task or "", str(chosen.data or ""), chosen.algorithm):
        if '"' in value or "\\" in value or not value.isprintable():
            raise ValueError(f"{value!r} cannot stand in a TOML string")
    ranks = max(chosen.gpus, 1) * chosen.nodes
    address = 'address = "HOST:6379"          # the Ray cluster that the nodes have joined\n'
    return Template(_STARTER.read_text("utf-8")).substitute(
        _task_parts(chosen),
        name=chosen.name,
        model=chosen.model,
        algorithm=chosen.algorithm,
        gpus=chosen.gpus,
        tokens=min(_USUAL_TOKENS, _positions(chosen) // 2),
        fsdp=ranks,
        batch=next(size for size in range(_LEAST_BATCH, 10**6) if size * _SAMPLES % ranks == 0),
        nodes=f"nodes = {chosen.nodes}\n{address}" if chosen.nodes > 1 else "",
    )


def _positions(chosen: Choices) -> int:
    """Tokens that a local model holds; plenty for one on the hub."""
    folder = absolute_path(chosen.model, chosen.folder)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return 2 * _USUAL_TOKENS
    found = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return found if isinstance(found, int) else 2 * _USUAL_TOKENS


def _task_parts(chosen: Choices) -> dict[str, str]:
    """The sections that depend on where prompts come from."""
    if chosen.data is not None:
        return {
            "data": _table(chosen.data),
            "reward": _reward("math", "the last \\boxed{} is the answer"),
            "eval": "",
        }
    kind = 'type = "reasoning_gym"         # procedurally generated (rlrun plugins list)'
    rows = f'{kind}\ntask = "{chosen.task}"\n{_ASKED}'
    return {
        "data": f"[data]\n{rows}size = 10000\n",
        "reward": _reward("reasoning_gym", "the task's own scorer") + _ANSWER,
        "eval": _held_out(rows),
    }


def _table(data: Path) -> str:
    """The section of a file with rows, its keys chosen by the names of its columns."""
    if not data.is_file():
        raise ValueError(
            f"there is no file {data}; --data takes JSON lines or Parquet, each row with prompt and label"
        )
    kind = "parquet" if data.suffix == ".parquet" else "jsonl"
    source = load("data", kind)
    columns = source.columns(source.Params(path=str(data)))
    prompt = _column(likely(columns, PROMPT_NAMES), "prompt", columns)
    label = _column(likely(columns, LABEL_NAMES), "label", columns)
    return (
        f"[data]                         # its columns: {', '.join(columns)}\n"
        f'type = "{kind}"\npath = "{data.absolute()}"\n'
        f"prompt_key = {prompt:19} # text, or a list of chat messages\n"
        f"label_key = {label:20} # what the reward compares with\n"
    )


def _column(found: str | None, usual: str, columns: Sequence[str]) -> str:
    """The column as TOML; ValueError where none looks like it."""
    if found is None:
        raise ValueError(
            f"none of the columns ({', '.join(columns) or 'there are none'}) looks like the {usual}: rename "
            f"one to {usual!r}, or copy a recipe (rlrun init --list) and set {usual}_key"
        )
    return json.dumps(found, ensure_ascii=False)


def _reward(kind: str, about: str) -> str:
    line = f'type = "{kind}"'
    return f"[[rewards]]\n{line:30} # {about}\n"


def _held_out(rows: str) -> str:
    seed = "seed = 100000000               # other rows than those trained on"
    return (
        f'\n[eval]\ninterval = 20\n\n[[eval.datasets]]\nname = "held-out"\n{rows}size = 200\n{seed}\n'
        "samples_per_prompt = 1\ntemperature = 0.0\n"
    )
