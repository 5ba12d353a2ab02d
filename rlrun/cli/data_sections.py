r"""The sections of a starter spec that follow from the user's rows: `[data]`, `[[rewards]]` and `[eval]`.

    file or folder ──► its data source, and the split or slice that is held out
    columns ─────────► the prompt and the label, or a chat whose last message is the label
    some rows ───────► whether the prompts still have to ask for the answer in the form that the reward reads

No row is copied: the held-out rows are a slice of the same file, or another split of the dataset.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.plugins.data.csv import DELIMITERS
from rlrun.plugins.data.hf import is_saved, splits_of
from rlrun.plugins.data.rows import LABEL_NAMES, PROMPT_NAMES, likely
from rlrun.plugins.registry import PluginError, build, checked_params, load
from rlrun.plugins.types import Row

_LOOKED_AT = 64
"""Number of rows that are looked at."""
_HELD_OUT_SHARE, _MAX_HELD_OUT = 10, 200
"""A tenth of the rows is held out, and at most 200."""
_HELD_OUT_SPLITS = ("test", "validation", "valid", "dev", "eval")
_IN_TEMPLATE = re.compile(r"[A-Za-z_][^{}]*")
"""Matches a column that `prompt_template` can name."""
_HASHES = r"#### (.*)"
"""What precedes the result in the answers of GSM8K."""


@dataclass(frozen=True, slots=True)
class _AnswerForm:
    """The form in which a reward expects the answer."""

    request: str
    """The sentence that asks for it."""
    mark: str
    """A prompt that contains this text asks for it already."""
    about: str
    """The comment in the file."""
    keys: str = ""
    """Keys of the reward that name the form."""


_BOXED = _AnswerForm("Put the final answer in \\boxed{}.", "boxed", "the last \\boxed{} is the answer")
_FORMS = {
    "math": _BOXED,
    "math_verify": _BOXED,
    "exact_match": _AnswerForm(
        "Give the final answer in <answer> tags.",
        "<answer>",
        "the last pair of tags holds the answer",
        'answer_pattern = "<answer>(.*?)</answer>"\n',
    ),
    "dapo": _AnswerForm(
        'End with a line "Answer: " and the final answer.', "Answer:", "the last line Answer: … counts"
    ),
}


@dataclass(frozen=True, slots=True)
class _Source:
    """The data source that reads the user's rows."""

    kind: str
    params: dict[str, str]
    sliced: str = "path"
    """The key whose value may end in a slice."""
    held_out_split: str | None = None
    """The split that is for evaluation; None: the data has none."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The user's rows as `[data]` reads them, and the reward that grades the answers to them."""

    source: _Source
    columns: Sequence[str]
    count: int
    keys: str
    """The keys of the prompt and of the label."""
    reward: str
    """The `[[rewards]]` table."""


def sections_of_data(
    data: Path, prompt_key: str | None, label_key: str | None, reward: str
) -> dict[str, str]:
    """Returns the sections by their names in starter.toml. Columns that are not given are chosen by name.

    Raises ValueError for data that cannot be read, or that lacks a prompt, or a label that the reward needs.
    """
    rows = _read(data, prompt_key, label_key, reward)
    train, held_out = _parts(rows.source, rows.count)
    listed = f"[data]                         # its columns: {', '.join(rows.columns)}\n"
    return {
        "data": listed + _table(rows.source, train) + rows.keys,
        "reward": rows.reward,
        "eval": evaluation_section(_table(rows.source, held_out) + rows.keys) if held_out else "",
    }


def evaluation_of_data(data: Path, prompt_key: str | None, label_key: str | None, reward: str) -> str:
    """Returns the sections of a job that evaluates on all rows, or on the split that is for evaluation.

    Raises ValueError as `sections_of_data` does.
    """
    rows = _read(data, prompt_key, label_key, reward)
    source = rows.source
    value = source.held_out_split or source.params[source.sliced]
    table = _table(source, (value, "")) + rows.keys
    name = toml_line("name", re.sub(r"[^A-Za-z0-9._-]+", "-", data.stem).strip("-._") or "rows")
    return f"[data]\n{table}\n{rows.reward}\n[[eval.datasets]]\n{name}{table}"


def _read(data: Path, prompt_key: str | None, label_key: str | None, reward: str) -> _Rows:
    source = _source_of(data)
    columns = _columns(source)
    prompt = _column(prompt_key, "prompt", PROMPT_NAMES, columns)
    if prompt is None:
        raise ValueError(f"no column ({', '.join(columns)}) looks like the prompt: set it with --prompt-key")
    label = _column(label_key, "label", LABEL_NAMES, columns)
    keys = {"prompt_key": prompt} | ({"label_key": label} if label else {})
    rows = build("data", source.kind, source.params | keys)
    shown = _some(rows)
    has_answers = _most(_ends_with_answer(row) for row in shown)
    if label is None and not has_answers and _needs_label(reward):
        raise ValueError(
            f"no column ({', '.join(columns)}) looks like the label, which {reward!r} needs: set it "
            "with --label-key, or choose a --reward that needs no label (rlrun plugins list)"
        )
    lines = _prompt_lines(prompt, shown, reward)
    lines += _label_lines(label, shown, has_answers=has_answers)
    form = _FORMS.get(reward)
    about = form.about if form else _about_reward(reward)
    table = reward_section(reward, about) + (form.keys if form else "")
    return _Rows(source, columns, len(rows), lines, table)


def _about_reward(reward: str) -> str:
    """Returns the comment for a reward whose form of the answer is not known."""
    return "code of your own" if ".py:" in reward else f"rlrun plugins show {reward}"


def reward_section(kind: str, about: str) -> str:
    """Returns the `[[rewards]]` table of a reward."""
    return f"[[rewards]]\n{toml_line('type', kind, about)}"


def evaluation_section(rows: str) -> str:
    """Returns `[eval]` with a dataset, whose data source has these keys."""
    return (
        f'\n[eval]\ninterval = 20\n\n[[eval.datasets]]\nname = "held-out"\n{rows}'
        "samples_per_prompt = 1\ntemperature = 0.0\n"
    )


def _source_of(data: Path) -> _Source:
    """Returns the source for a file or a folder. Raises ValueError if there is none."""
    if not data.exists():
        raise ValueError(
            f"there is no file {data}; --data takes JSON lines, CSV or Parquet files, or the folder of a "
            "dataset (hf download NAME --repo-type dataset --local-dir FOLDER)"
        )
    path = {"path": str(data.absolute())}
    if data.is_dir():
        return _Source("parquet", path) if _is_one_split(data) else _dataset(data)
    if data.suffix in (".csv", ".tsv"):
        with data.open(encoding="utf-8", errors="replace") as file:
            names = file.readline()
        delimiter = max(DELIMITERS, key=names.count)
        return _Source("csv", path if delimiter == "," else {**path, "delimiter": delimiter})
    return _Source("parquet" if data.suffix == ".parquet" else "jsonl", path)


def _is_one_split(folder: Path) -> bool:
    """Returns whether the folder only has Parquet files, whose names do not say which split they are of."""
    words = {word for file in folder.glob("*.parquet") for word in re.split(r"[^a-z]+", file.stem.lower())}
    is_dataset = is_saved(str(folder)) or (folder / "README.md").exists()
    return not is_dataset and bool(words) and not words.intersection(("train", *_HELD_OUT_SPLITS))


def _dataset(folder: Path) -> _Source:
    """Returns the source for a dataset's folder, with its split for training.

    Raises ValueError for several configurations: the key that names one is `name`, which is the name of the
    evaluation in `[[eval.datasets]]`.
    """
    try:
        configurations = splits_of(str(folder))
    except ImportError:
        raise ValueError(f"{folder} is read by the datasets library: pip install 'rlrun[data]'") from None
    if len(configurations) > 1:
        names = ", ".join(map(str, configurations))
        raise ValueError(f"{folder} has the configurations {names}: give --data the folder of one of them")
    (splits,) = configurations.values()
    split = "train" if "train" in splits else splits[0]
    held_out = next((each for each in _HELD_OUT_SPLITS if each in splits and each != split), None)
    return _Source("hf", {"path": str(folder.absolute()), "split": split}, "split", held_out)


def _columns(source: _Source) -> list[str]:
    plugin = load("data", source.kind)
    columns: list[str] = plugin.columns(checked_params("data", source.kind, source.params))
    return columns


def _column(given: str | None, role: str, names: Sequence[str], columns: Sequence[str]) -> str | None:
    """Returns the given column, or a column with a likely name. Raises ValueError if it does not exist."""
    if given is not None and given not in columns:
        raise ValueError(f"--{role}-key {given}: there is no such column; columns: {', '.join(columns)}")
    return given or likely(columns, names)


def _some(rows: Any) -> list[Row]:
    """Returns the first rows without the broken ones. Raises ValueError if all of them are broken."""
    shown: list[Row] = []
    problem = None
    for index in range(min(len(rows), _LOOKED_AT)):
        try:
            shown.append(rows[index])
        except ValueError as error:
            problem = problem or error
    if problem is not None and not shown:
        raise problem
    return shown


def _most(answers: Iterable[bool]) -> bool:
    """Returns whether more than half of the answers are yes."""
    values = list(answers)
    return sum(values) * 2 > len(values)


def _ends_with_answer(row: Row) -> bool:
    return not isinstance(row.prompt, str) and row.prompt[-1]["role"] == "assistant"


def _prompt_lines(column: str, rows: list[Row], reward: str) -> str:
    """Returns the keys of the prompt, which ask for the answer in the form that the reward reads."""
    form, chats = _FORMS.get(reward), _most(not isinstance(row.prompt, str) for row in rows)
    key = toml_line("prompt_key", column, "a list of chat messages" if chats else "text")
    if form is None or _most(form.mark in row.text(without=("assistant",)) for row in rows):
        return key
    if not chats and _IN_TEMPLATE.fullmatch(column):
        return toml_line("prompt_template", f"{{{column}}}\n{form.request}")
    if _most(row.prompt[0]["role"] == "system" for row in rows if isinstance(row.prompt, list)):
        return key + f"# the system messages of these chats should say: {form.request}\n"
    return key + toml_line("system_prompt", form.request)


def _label_lines(label: str | None, rows: list[Row], *, has_answers: bool) -> str:
    """Returns the keys of the label. Without a column for it, the answer that ends a chat is the label."""
    if label is None:
        answers = [str(row.prompt[-1]["content"]) for row in rows if not isinstance(row.prompt, str)]
        comment = "the last answer of a chat is its label, and no part of the prompt"
        lines = toml_line("last_answer", "label", comment) if has_answers else ""
    else:
        answers = [str(row.label) for row in rows]
        lines = toml_line("label_key", label, "the reward compares answers with it")
        lines += (
            toml_line("last_answer", "drop", "the prompt ends before a chat's last answer")
            if has_answers
            else ""
        )
    if answers and lines and _most("####" in answer for answer in answers):
        lines += toml_line("label_pattern", _HASHES, "the label is what follows")
    return lines


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


def _parts(source: _Source, count: int) -> tuple[tuple[str, str], tuple[str, str] | None]:
    """Returns the value of the sliced key for training and for evaluation, each with its comment.

    The second one is None if the data has too few rows to hold some out.
    """
    whole = source.params[source.sliced]
    if source.held_out_split is not None:
        return (whole, ""), (f"{source.held_out_split}@[:{_MAX_HELD_OUT}]", "not trained on")
    held_out = min(count // _HELD_OUT_SHARE, _MAX_HELD_OUT)
    if not held_out:
        return (whole, f"{count} rows are too few to hold some out for [eval]"), None
    return (
        (f"{whole}@[:-{held_out}]", f"without the last {held_out} of {count} rows, which [eval] has"),
        (f"{whole}@[-{held_out}:]", "not trained on"),
    )


def _table(source: _Source, part: tuple[str, str]) -> str:
    """Returns the keys of the data source, with the given part of its rows."""
    value, comment = part
    lines = toml_line("type", source.kind)
    for key, each in source.params.items():
        lines += toml_line(key, value, comment) if key == source.sliced else toml_line(key, each)
    return lines


def toml_line(key: str, value: str, comment: str = "") -> str:
    """Returns a line of TOML, with its comment in the column of the comments of starter.toml."""
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{line:30} # {comment}\n" if comment else f"{line}\n"
