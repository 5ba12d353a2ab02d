"""`rlrun init`: writes a commented spec to start from, which is starter.toml with the user's choices."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from rlrun.cli.arguments import AllowLocalPlugins, LabelKey, PromptKey, RowsReward, load
from rlrun.cli.data_sections import evaluation_section, reward_section, sections_of_data, toml_line
from rlrun.cli.schema import SCHEMA_FILE, write_schema
from rlrun.models.config_defaults import text_config
from rlrun.models.json_files import read_json
from rlrun.plugins.registry import PluginError, build
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.paths import absolute_path
from rlrun.specs.problems.findings import SpecError

_MODEL, _TASK = "Qwen/Qwen3-0.6B", "chain_sum"
Target = Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")]
Model = Annotated[str | None, typer.Option(help=f"HF id or folder of the model. Default: {_MODEL}.")]
Task = Annotated[str | None, typer.Option(help=f"Task of reasoning-gym to learn. Default: {_TASK}.")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Rows to train on instead of a task: JSON lines, CSV, Parquet, or the folder of a dataset of "
        "Hugging Face. --reward grades the answers."
    ),
]
Environment = Annotated[
    Path | None,
    typer.Option(
        help="Python file with an environment of yours, in which the policy acts over several turns. A file "
        "that does not exist is written, with a small game to change. Needs --allow-local-plugins."
    ),
]
Gpus = Annotated[int | None, typer.Option(help="GPUs per node; 0 runs on the CPU.", min=0)]
Nodes = Annotated[int, typer.Option(help="Number of nodes in the Ray cluster.", min=1)]
Algorithm = Annotated[str, typer.Option(help="The algorithm that turns rewards into a loss.")]
_STARTER = Path(__file__).parent / "starter.toml"
_STARTER_ENVIRONMENT = Path(__file__).parent / "starter_environment.txt"
_ENVIRONMENT = re.compile(r"^@(?:rlrun\.)?environment\s*^class (\w+)", re.MULTILINE)
"""Matches the environment of a file."""
_PROMPT_TEMPLATE = 'prompt_template = "{question}\\nGive the final answer in <answer> tags."\n'
_ANSWER_KEYS = (
    'answer_pattern = "<answer>(.*?)</answer>"\n'
    "threshold = 1.0                # right or wrong: no credit for text that only contains the answer\n"
)
_OTHER_SEED = "seed = 100000000               # different rows from the training rows"
_MIN_BATCH, _SAMPLES, _MAX_TOKENS = 32, 8, 512


def command(
    path: Target = Path("job.toml"),
    *,
    model: Model = None,
    task: Task = None,
    data: Data = None,
    environment: Environment = None,
    prompt_key: PromptKey = None,
    label_key: LabelKey = None,
    reward: RowsReward = "math",
    gpus: Gpus = None,
    nodes: Nodes = 1,
    algorithm: Algorithm = "grpo",
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """Write a spec to start from; in a terminal, ask for what the options leave open.

    The file is complete and valid, and explains each setting. Editors check it with the schema beside it.
    """
    if path.exists():
        raise ValueError(f"{path} already exists; choose another name: rlrun init NAME.toml")
    if sum(source is not None for source in (task, data, environment)) > 1:
        raise ValueError("--task, --data and --environment name a source of prompts: give only one of them")
    if data is None and (prompt_key or label_key or reward != "math"):
        raise ValueError("--prompt-key, --label-key and --reward apply to the rows of --data: add --data")
    model = _value_or_answer(model, "model (HF id or folder)", _MODEL)
    if task is None and data is None and environment is None:
        task, data = _ask_for_prompts()
    _check_learns_from_rewards(algorithm)
    if gpus is None:
        gpus = _whole_number(_value_or_answer(None, "GPUs per node (0: CPU)", "0"))
    run, keys = _run_name(path), (prompt_key, label_key)
    choices = StarterChoices(
        run, path.parent, model, task, data, gpus, nodes, algorithm, *keys, reward, environment
    )
    with _environment_file(environment):
        _write(path, spec_text(choices))
    write_schema(path.with_name(SCHEMA_FILE))
    rest = f"{path} --allow-local-plugins" if allow_local_plugins else str(path)
    print_text(f"wrote {path}; next: rlrun validate {rest}, rlrun plan {rest}, rlrun launch {rest}")


@contextmanager
def _environment_file(path: Path | None) -> Iterator[None]:
    """Writes the environment's file if it does not exist, and removes it again if the block fails."""
    if path is None or path.exists():
        yield
        return
    path.write_bytes(_STARTER_ENVIRONMENT.read_bytes())
    try:
        yield
    except BaseException:
        path.unlink()
        raise


def _check_learns_from_rewards(algorithm: str) -> None:
    """Raises ValueError for an algorithm that does not learn from rewards.

    An unknown algorithm is reported later, with the problems of the spec.
    """
    try:
        needs = build("algorithms", algorithm, {}).needs
    except PluginError:
        return
    if not needs.rollout or not needs.rewards:
        recipe = "distillation" if needs.teacher else "sft"
        raise ValueError(
            f"rlrun init only writes jobs that learn from rewards; for {algorithm}, begin a file with "
            f'extends = "package:{recipe}.toml" and change the settings that differ (docs/algorithms.md)'
        )


def _run_name(path: Path) -> str:
    """Returns the file's name with only the characters that the name of a run may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "job"


def _ask_for_prompts() -> tuple[str | None, Path | None]:
    """Asks for the source of the prompts; returns a task or a file, and None for the other."""
    answer = _value_or_answer(None, "task of reasoning-gym, or a file or folder of rows", _TASK)
    is_file = answer.endswith((".jsonl", ".parquet", ".csv", ".tsv")) or Path(answer).exists()
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


@dataclass(frozen=True, slots=True)
class StarterChoices:
    """The user's choices for a starter spec."""

    name: str
    folder: Path
    model: str
    task: str | None
    data: Path | None
    gpus: int
    nodes: int
    algorithm: str
    prompt_key: str | None = None
    """Column of `data` with the prompt; None chooses a column by its name."""
    label_key: str | None = None
    reward: str = "math"
    """The reward that grades answers to rows of `data`."""
    environment: Path | None = None


def spec_text(choices: StarterChoices) -> str:
    """Returns the spec's text. Raises ValueError for missing data or a value that TOML cannot hold."""
    for value in (
        choices.model,
        choices.task or "",
        str(choices.data or ""),
        str(choices.environment or ""),
        choices.algorithm,
        choices.reward,
    ):
        if '"' in value or "\\" in value or not value.isprintable():
            raise ValueError(
                f"{value!r} cannot be written as a TOML string: "
                "remove quotes, backslashes and control characters"
            )
    ranks = max(choices.gpus, 1) * choices.nodes
    address = 'address = "HOST:6379"          # the Ray cluster that the nodes have joined\n'
    return Template(_STARTER.read_text("utf-8")).substitute(
        _task_parts(choices),
        name=choices.name,
        path=toml_line(
            "path", choices.model, "HF id, or a folder with config.json, tokenizer and safetensors"
        ),
        algorithm=choices.algorithm,
        gpus=choices.gpus,
        tokens=min(_MAX_TOKENS, _positions(choices) // 2),
        fsdp=ranks,
        batch=next(size for size in range(_MIN_BATCH, 10**6) if size * _SAMPLES % ranks == 0),
        nodes=f"nodes = {choices.nodes}\n{address}" if choices.nodes > 1 else "",
    )


def _positions(choices: StarterChoices) -> int:
    """Returns the number of positions of a local model; for a model on the hub, twice `_MAX_TOKENS`."""
    folder = absolute_path(choices.model, choices.folder)
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return 2 * _MAX_TOKENS
    positions = text_config(config).get("max_position_embeddings") if isinstance(config, dict) else None
    return positions if isinstance(positions, int) else 2 * _MAX_TOKENS


def _task_parts(choices: StarterChoices) -> dict[str, str]:
    """Returns the sections that depend on the source of the prompts."""
    if choices.environment is not None:
        return _environment_parts(choices.environment, choices.folder)
    if choices.data is not None:
        sections = sections_of_data(choices.data, choices.prompt_key, choices.label_key, choices.reward)
        return {**sections, "rollout": ""}
    kind = 'type = "reasoning_gym"         # procedurally generated (rlrun plugins list)'
    rows = f'{kind}\ntask = "{choices.task}"\n{_PROMPT_TEMPLATE}'
    return {
        "data": f"[data]\n{rows}size = 10000\n",
        "rollout": "",
        "reward": reward_section("reasoning_gym", "the task's own scorer") + _ANSWER_KEYS,
        "eval": evaluation_section(f"{rows}size = 200\n{_OTHER_SEED}\n"),
    }


def _environment_parts(path: Path, folder: Path) -> dict[str, str]:
    """Returns the sections of a job in an environment. Raises ValueError for a file without one."""
    text = path.read_text("utf-8")
    if not (match := _ENVIRONMENT.search(text)):
        raise ValueError(f"{path} has no class that is decorated with @rlrun.environment")
    source = '[data]\ntype = "environment"           # its tasks are the rows\n'
    kind = f'type = "{os.path.relpath(path, folder)}:{match[1]}"'
    return {
        "data": f"{source}\n[data.environment]\n{kind}\n",
        "rollout": "max_turn_tokens = 32           # of one action\n"
        'function = { type = "environment" }  # the policy acts until the environment ends\n',
        "reward": reward_section("noted", "the sum of the environment's rewards"),
        "eval": "",
    }
