"""The text of the spec that `rlrun init` writes: starter.toml, filled in with what the user wants."""

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
    "threshold = 1.0                # right or wrong: no credit for what merely contains the answer\n"
)
_ABOUT = {"math": "the last \\boxed{} is the answer"}
"""What the file says about a reward."""
_LEAST_BATCH, _SAMPLES, _USUAL_TOKENS = 32, 8, 512


@dataclass(frozen=True, slots=True)
class StarterChoices:
    """What the user wants."""

    name: str
    folder: Path
    model: str
    task: str | None
    data: Path | None
    gpus: int
    nodes: int
    algorithm: str
    prompt_key: str | None = None
    """Column of the prompt in `data`; None: found by its name."""
    label_key: str | None = None
    reward: str = "math"
    """How rows of `data` are graded."""


def spec_text(chosen: StarterChoices) -> str:
    """The file. ValueError for what no TOML string holds, or for data that is not there."""
    for value in (chosen.model, chosen.task or "", str(chosen.data or ""), chosen.algorithm, chosen.reward):
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


def _positions(chosen: StarterChoices) -> int:
    """Tokens that a local model holds; plenty for one on the hub."""
    folder = absolute_path(chosen.model, chosen.folder)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return 2 * _USUAL_TOKENS
    found = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return found if isinstance(found, int) else 2 * _USUAL_TOKENS


def _task_parts(chosen: StarterChoices) -> dict[str, str]:
    """The sections that depend on where prompts come from."""
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
    """The section of a file with rows; keys that are not given are chosen by the names of its columns."""
    if not data.exists():
        raise ValueError(
            f"there is no file {data}; --data takes JSON lines, or Parquet files, with a prompt in each row"
        )
    kind = "parquet" if data.suffix == ".parquet" or any(data.glob("*.parquet")) else "jsonl"
    source = load("data", kind)
    columns = source.columns(source.Params(path=str(data)))
    prompt = _column(chosen.prompt_key, "prompt", PROMPT_NAMES, columns)
    if prompt is None:
        raise ValueError(
            f"none of the columns ({', '.join(columns)}) looks like the prompt: name it with --prompt-key"
        )
    label = _column(chosen.label_key, "label", LABEL_NAMES, columns)
    if label is None and _needs_label(chosen.reward):
        raise ValueError(
            f"none of the columns ({', '.join(columns)}) looks like the label, which the reward "
            f"{chosen.reward!r} compares with: name it with --label-key, or choose a --reward that needs "
            "none (rlrun plugins list)"
        )
    return (
        f"[data]                         # its columns: {', '.join(columns)}\n"
        f'type = "{kind}"\npath = "{data.absolute()}"\n'
        f"prompt_key = {_quoted(prompt):19} # text, or a list of chat messages\n"
        + (f"label_key = {_quoted(label):20} # what the reward compares with\n" if label else "")
    )


def _column(given: str | None, role: str, names: Sequence[str], columns: Sequence[str]) -> str | None:
    """The column that was given, or the one with a likely name. ValueError for one that does not exist."""
    if given is not None and given not in columns:
        raise ValueError(f"--{role}-key {given}: the rows have {', '.join(columns)}")
    return given or likely(columns, names)


def _needs_label(reward: str) -> bool:
    """Whether a reward refuses rows without a label; unknown rewards are left to the spec's own check."""
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
    seed = "seed = 100000000               # other rows than those trained on"
    return (
        f'\n[eval]\ninterval = 20\n\n[[eval.datasets]]\nname = "held-out"\n{rows}size = 200\n{seed}\n'
        "samples_per_prompt = 1\ntemperature = 0.0\n"
    )
