"""Fills starter.toml in with the user's choices; `rlrun init` writes the result."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rlrun.plugins.data.columns import LABEL_NAMES, PROMPT_NAMES, likely
from rlrun.plugins.registry import PluginError, checked_params, load
from rlrun.plugins.types import Row
from rlrun.specs.paths import absolute_path

_STARTER = Path(__file__).parent / "starter.toml"
_ASKED = 'prompt_template = "{question}\\nGive the final answer in <answer> tags."\n'
_ANSWER = (
    'answer_pattern = "<answer>(.*?)</answer>"\n'
    "threshold = 1.0                # right or wrong: no credit for text that only contains the answer\n"
)
_ABOUT = {"math": "the last \\boxed{} is the answer"}
"""Comments on rewards that the file gets instead of a pointer to `rlrun plugins show`."""
_LEAST_BATCH, _SAMPLES, _USUAL_TOKENS = 32, 8, 512


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


def spec_text(chosen: StarterChoices) -> str:
    """Returns the spec's text. Raises ValueError for missing data or a value that TOML cannot hold."""
    for value in (chosen.model, chosen.task or "", str(chosen.data or ""), chosen.algorithm, chosen.reward):
        if '"' in value or "\\" in value or not value.isprintable():
            raise ValueError(
                f"{value!r} cannot be written as a TOML string: "
                "remove quotes, backslashes and control characters"
            )
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


def _positions(chosen: StarterChoices) -> int:
    """Returns the number of positions of a local model; for a model on the hub, twice the usual length."""
    folder = absolute_path(chosen.model, chosen.folder)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return 2 * _USUAL_TOKENS
    positions = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return positions if isinstance(positions, int) else 2 * _USUAL_TOKENS


def _task_parts(chosen: StarterChoices) -> dict[str, str]:
    """Returns the sections that depend on the source of the prompts."""
    if chosen.data is not None:
        about = _ABOUT.get(chosen.reward, f"rlrun plugins show {chosen.reward}")
        return {
            "data": _table(chosen, chosen.data),
            "reward": _reward(chosen.reward, about),
            "eval": "",
        }
    kind = 'type = "reasoning_gym"         # procedurally generated (rlrun plugins list)'
    rows = f'{kind}\ntask = "{chosen.task}"\n{_ASKED}'
    return {
        "data": f"[data]\n{rows}size = 10000\n",
        "reward": _reward("reasoning_gym", "the task's own scorer") + _ANSWER,
        "eval": _held_out(rows),
    }


def _table(chosen: StarterChoices, data: Path) -> str:
    """Returns the `[data]` section of a file; columns that are not given are chosen by their names."""
    if not data.exists():
        raise ValueError(
            f"there is no file {data}; --data takes JSON lines, or Parquet files, with a prompt in each row"
        )
    kind = "parquet" if data.suffix == ".parquet" or any(data.glob("*.parquet")) else "jsonl"
    source = load("data", kind)
    columns = source.columns(source.Params(path=str(data)))
    prompt = _column(chosen.prompt_key, "prompt", PROMPT_NAMES, columns)
    if prompt is None:
        raise ValueError(f"no column ({', '.join(columns)}) looks like the prompt: set it with --prompt-key")
    label = _column(chosen.label_key, "label", LABEL_NAMES, columns)
    if label is None and _needs_label(chosen.reward):
        raise ValueError(
            f"no column ({', '.join(columns)}) looks like the label, which {chosen.reward!r} needs: set it "
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
