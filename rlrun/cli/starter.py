"""The text of the spec that `rlrun init` writes: starter.toml, filled in with what the user wants."""

import json
from dataclasses import dataclass
from pathlib import Path
from string import Template

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
            "data": _jsonl(chosen.data),
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


def _jsonl(data: Path) -> str:
    if not data.is_file():
        raise ValueError(f"there is no file {data}; it holds one JSON object a line, with prompt and label")
    return (
        f'[data]\ntype = "jsonl"\npath = "{data.absolute()}"\n'
        'prompt_key = "prompt"          # text, or a list of chat messages\nlabel_key = "label"\n'
    )


def _reward(kind: str, about: str) -> str:
    line = f'type = "{kind}"'
    return f"[[rewards]]\n{line:30} # {about}\n"


def _held_out(rows: str) -> str:
    seed = "seed = 100000000               # other rows than those trained on"
    return (
        f'\n[eval]\ninterval = 20\n\n[[eval.datasets]]\nname = "held-out"\n{rows}size = 200\n{seed}\n'
        "samples_per_prompt = 1\ntemperature = 0.0\n"
    )
