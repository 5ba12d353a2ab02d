"""`rlrun init`: writes a commented spec to start from."""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.arguments import load
from rlrun.cli.schema import SCHEMA_FILE, write_schema
from rlrun.cli.starter import StarterChoices, spec_text
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.findings import SpecError

_MODEL, _TASK = "Qwen/Qwen3-0.6B", "chain_sum"


Target = Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")]
Model = Annotated[str | None, typer.Option(help=f"HF id or folder of the model. Default: {_MODEL}.")]
Task = Annotated[str | None, typer.Option(help=f"Task of reasoning-gym to learn. Default: {_TASK}.")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="JSON lines or Parquet file to train on instead of a task; --reward grades the answers."
    ),
]
PromptKey = Annotated[
    str | None, typer.Option(help="Column of --data with the prompt. Default: chosen by name.")
]
LabelKey = Annotated[
    str | None, typer.Option(help="Column of --data with the right answer. Default: chosen by name.")
]
Reward = Annotated[
    str, typer.Option(help="The reward that grades answers to rows of --data (rlrun plugins list).")
]
Gpus = Annotated[int | None, typer.Option(help="GPUs per node; 0 runs on the CPU.", min=0)]
Nodes = Annotated[int, typer.Option(help="Number of nodes in the Ray cluster.", min=1)]
Algorithm = Annotated[str, typer.Option(help="The algorithm that turns rewards into a loss.")]


def command(
    path: Target = Path("job.toml"),
    *,
    model: Model = None,
    task: Task = None,
    data: Data = None,
    prompt_key: PromptKey = None,
    label_key: LabelKey = None,
    reward: Reward = "math",
    gpus: Gpus = None,
    nodes: Nodes = 1,
    algorithm: Algorithm = "grpo",
) -> None:
    """Write a spec to start from; in a terminal, ask for what the options leave open.

    The file is complete and valid, and explains each setting. Editors check it with the schema beside it.
    """
    if path.exists():
        raise ValueError(f"{path} already exists; choose another name: rlrun init NAME.toml")
    if task is not None and data is not None:
        raise ValueError("--task and --data both name a source of prompts: give only one of them")
    if data is None and (prompt_key or label_key or reward != "math"):
        raise ValueError("--prompt-key, --label-key and --reward apply to the rows of --data: add --data")
    model = _value_or_answer(model, "model (HF id or folder)", _MODEL)
    if task is None and data is None:
        task, data = _ask_for_prompts()
    _check_learns_from_rewards(algorithm)
    if gpus is None:
        gpus = _whole_number(_value_or_answer(None, "GPUs per node (0: CPU)", "0"))
    run, keys = _run_name(path), (prompt_key, label_key)
    choices = StarterChoices(run, path.parent, model, task, data, gpus, nodes, algorithm, *keys, reward)
    _write(path, spec_text(choices))
    write_schema(path.with_name(SCHEMA_FILE))
    print_text(f"wrote {path}; next: rlrun validate {path}, rlrun plan {path}, rlrun launch {path}")


def _check_learns_from_rewards(algorithm: str) -> None:
    """Raises ValueError for an algorithm that does not learn from rewards.

    An unknown algorithm is reported later, with the problems of the spec.
    """
    recipes = {"sft": "sft", "dpo": "sft", "on_policy_distillation": "distillation"}
    if recipe := recipes.get(algorithm):
        raise ValueError(
            f"rlrun init only writes jobs that learn from rewards; for {algorithm}, begin a file with "
            f'extends = "package:{recipe}.toml" and change the settings that differ (docs/algorithms.md)'
        )


def _run_name(path: Path) -> str:
    """Returns the file's name with only the characters that the name of a run may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "job"


def _ask_for_prompts() -> tuple[str | None, Path | None]:
    """Asks for the source of the prompts; returns a task or a file, and None for the other."""
    answer = _value_or_answer(None, "task of reasoning-gym, or a .jsonl or .parquet file", _TASK)
    is_file = answer.endswith((".jsonl", ".parquet")) or Path(answer).exists()
    return (None, Path(answer)) if is_file else (answer, None)


def _value_or_answer(value: str | None, question: str, default: str) -> str:
    """Returns an option's value, or else the user's answer in a terminal, or else the default."""
    if value is not None:
        return value
    return str(typer.prompt(question, default=default)) if sys.stdin.isatty() else default


def _whole_number(answer: str) -> int:
    if not answer.isdecimal():
        raise ValueError(f"{answer!r} is not a number of GPUs: answer 0, 1, 2, …")
    return int(answer)


def _write(path: Path, text: str) -> None:
    """Writes a spec if it is valid. Otherwise raises SpecError and leaves no file."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None
    try:
        load([str(path)], None)
    except SpecError:
        path.unlink()
        print_text(f"{path} was not written, because the spec would not be valid:", file=sys.stderr)
        raise
