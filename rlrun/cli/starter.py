"""Fills starter.toml in with the user's choices; `rlrun init` writes the result."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rlrun.models.config_defaults import text_config
from rlrun.models.json_files import read_json
from rlrun.plugins.data.columns import LABEL_NAMES, PROMPT_NAMES, likely
from rlrun.plugins.registry import PluginError, checked_params, load
from rlrun.plugins.types import Row
from rlrun.specs.paths import absolute_path

_STARTER = Path(__file__).parent / "starter.toml"
_PROMPT_TEMPLATE = 'prompt_template = "{question}\\nGive the final answer in <answer> tags."\n'
_ANSWER_KEYS = (
    'answer_pattern = "<answer>(.*?)</answer>"\n'
    "threshold = 1.0                # right or wrong: no credit for text that only contains the answer\n"
)
_REWARD_COMMENTS = {"math": "the last \\boxed{} is the answer"}
"""Comments on rewards that the file gets instead of a pointer to `rlrun plugins show`."""
_MIN_BATCH, _SAMPLES, _MAX_TOKENS = 32, 8, 512


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


def spec_text(choices: StarterChoices) -> str:
    """Returns the spec's text. Raises ValueError for missing data or a value that TOML cannot hold."""
    for value in (
        choices.model,
        choices.task or "",
        str(choices.data or ""),
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
        model=choices.model,
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
    if choices.data is not None:
        about = _REWARD_COMMENTS.get(choices.reward, f"rlrun plugins show {choices.reward}")
        return {
            "data": _table(choices, choices.data),
            "reward": _reward(choices.reward, about),
            "eval": "",
        }
    kind = 'type = "reasoning_gym"         # procedurally generated (rlrun plugins list)'
    rows = f'{kind}\ntask = "{choices.task}"\n{_PROMPT_TEMPLATE}'
    return {
        "data": f"[data]\n{rows}size = 10000\n",
        "reward": _reward("reasoning_gym", "the task's own scorer") + _ANSWER_KEYS,
        "eval": _held_out(rows),
    }


def _table(choices: StarterChoices, data: Path) -> str:
    """Returns the `[data]` section of a file; columns that are not given are choices by their names."""
    if not data.exists():
        raise ValueError(
            f"there is no file {data}; --data takes JSON lines, or Parquet files, with a prompt in each row"
        )
    kind = "parquet" if data.suffix == ".parquet" or any(data.glob("*.parquet")) else "jsonl"
    source = load("data", kind)
    columns = source.columns(source.Params(path=str(data)))
    prompt = _column(choices.prompt_key, "prompt", PROMPT_NAMES, columns)
    if prompt is None:
        raise ValueError(f"no column ({', '.join(columns)}) looks like the prompt: set it with --prompt-key")
    label = _column(choices.label_key, "label", LABEL_NAMES, columns)
    if label is None and _needs_label(choices.reward):
        raise ValueError(
            f"no column ({', '.join(columns)}) looks like the label, which {choices.reward!r} needs: set it "
            "with --label-key, or choose a --reward that needs no label (rlrun plugins list)"
        )
    return (
        f"[data]                         # its columns: {', '.join(columns)}\n"
        f'type = "{kind}"\npath = "{data.absolute()}"\n'
        f"prompt_key = {_quoted(prompt):19} # text, or a list of chat messages\n"
        + (f"label_key = {_quoted(label):20} # the reward compares answers with it\n" if label else "")
    )


def _column(given: str | None, role: str, names: Sequence[str], columns: Sequence[str]) -> str | None:
    """Returns the given column, or a column with a likely name. Raises ValueError if it does not exist."""
    if given is not None and given not in columns:
        raise ValueError(f"--{role}-key {given}: there is no such column; columns: {', '.join(columns)}")
    return given or likely(columns, names)


def _needs_label(reward: str) -> bool:
    """Returns whether a reward refuses rows without a label; the spec's own check reports unknown rewards."""
    try:
        check_row = getattr(load("rewards", reward), "check_row", None)
        if check_row is not None:
            check_row(checked_params("rewards", reward, {}), Row("1", "?"))
    except PluginError:
        return False
    except ValueError:
        return True
    return False


def _quoted(column: str) -> str:
    return json.dumps(column, ensure_ascii=False)


def _reward(kind: str, about: str) -> str:
    line = f'type = "{kind}"'
    return f"[[rewards]]\n{line:30} # {about}\n"


def _held_out(rows: str) -> str:
    seed = "seed = 100000000               # different rows from the training rows"
    return (
        f'\n[eval]\ninterval = 20\n\n[[eval.datasets]]\nname = "held-out"\n{rows}size = 200\n{seed}\n'
        "samples_per_prompt = 1\ntemperature = 0.0\n"
    )
