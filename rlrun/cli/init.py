"""`rlrun init`: a commented spec to start from."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from rlrun.cli.arguments import load
from rlrun.specs.paths import absolute_path
from rlrun.specs.problems import SpecError

_STARTER = Path(__file__).parent / "starter.toml"
_MODEL, _TASK = "Qwen/Qwen3-0.6B", "chain_sum"
_ASKED = 'prompt_template = "{question}\\nGive the final answer in <answer> tags."\n'
_ANSWER = (
    'answer_pattern = "<answer>(.*?)</answer>"\n'
    "threshold = 1.0                # right or wrong: no credit for what merely contains the answer\n"
)
_LEAST_BATCH, _SAMPLES, _USUAL_TOKENS = 32, 8, 512


def command(
    path: Annotated[Path, typer.Argument(help="The file to write; one that exists is left alone.")] = Path(
        "job.toml"
    ),
    *,
    model: Annotated[str | None, typer.Option(help=f"HF id or folder of the model: {_MODEL}.")] = None,
    task: Annotated[str | None, typer.Option(help=f"Task of reasoning-gym to learn: {_TASK}.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="JSON lines with prompt and label, instead of a task; graded as mathematics."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of each node; 0 runs on CPU.", min=0)] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of a Ray cluster.", min=1)] = 1,
    algorithm: Annotated[str, typer.Option(help="How rewards become a loss.")] = "grpo",
) -> None:
    """Write a spec that is complete and valid, each setting explained; asks in a terminal."""
    if path.exists():
        raise ValueError(f"{path} is there already; choose another name: rlrun init NAME.toml")
    if task is not None and data is not None:
        raise ValueError("--task and --data are two sources of prompts: give one of them")
    asks = sys.stdin.isatty()
    model = _given(model, "model (HF id or folder)", _MODEL, asks)
    if task is None and data is None:
        answer = _given(None, "what to learn: a reasoning-gym task, or a .jsonl file", _TASK, asks)
        task, data = (None, Path(answer)) if answer.endswith(".jsonl") else (answer, None)
    gpus = gpus if gpus is not None else int(_given(None, "GPUs of each node (0: CPU)", "0", asks))
    _write(path, _spec_text(_Choices(path.stem, path.parent, model, task, data, gpus, nodes, algorithm)))
    print(f"wrote {path}; next: rlrun validate {path}, rlrun plan {path}, rlrun launch {path}")


def _given(value: str | None, question: str, usual: str, asks: bool) -> str:
    if value is not None or not asks:
        return value if value is not None else usual
    return str(typer.prompt(question, default=usual))


@dataclass(frozen=True, slots=True)
class _Choices:
    """What the user wants."""

    name: str
    folder: Path
    model: str
    task: str | None
    data: Path | None
    gpus: int
    nodes: int
    algorithm: str


def _spec_text(chosen: _Choices) -> str:
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


def _positions(chosen: _Choices) -> int:
    """Tokens that a local model holds; plenty for one on the hub."""
    folder = absolute_path(chosen.model, chosen.folder)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return 2 * _USUAL_TOKENS
    found = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return found if isinstance(found, int) else 2 * _USUAL_TOKENS


def _task_parts(chosen: _Choices) -> dict[str, str]:
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


def _write(path: Path, text: str) -> None:
    """Write a spec that turns out valid; SpecError, and no file, for one that does not."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None
    try:
        load([str(path)], None)
    except SpecError:
        path.unlink()
        raise
