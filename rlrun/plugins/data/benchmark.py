"""Prompts of a published set by its name, with the prompt that its evaluations use (docs/benchmarks.md).

set ─▶ rlrun/specs/benchmarks.toml: repository, revision, columns, form
rows of the hub, or of a copy ─▶ the form ─▶ prompt, label, metadata for the set's reward
"""

import base64
import hashlib
import io
import json
import pickle
import random
import string
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from rlrun.models.json_files import parse_json
from rlrun.plugins.data.hf import HfParams, load_table
from rlrun.plugins.rewards.extraction import last_match
from rlrun.plugins.types import Row
from rlrun.specs.benchmarks import Benchmark, Form, benchmarks
from rlrun.specs.paths import DataPath
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.sections.section import Section

_MAX_TESTS = 256 << 20
"""Largest size in bytes of the tests of one problem, unpacked."""

_MATH = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_CHOICE = (
    "Answer the following multiple choice question. The last line of your response should be of the "
    "following format: 'Answer: $LETTER' (without quotes) where LETTER is one of {letters}. Think step by "
    "step before answering.\n\n{question}\n\n{choices}"
)
_FUNCTION = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{prompt}\n```\n"
)
_PROGRAM = (
    "You will be given a question (problem specification) and will generate a correct Python program that "
    "matches the specification and passes all tests.\n\nQuestion: {question}\n\n{format}"
)
_WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code "
    "within delimiters.\n```python\n{starter}\n```\n\n"
)
_WITH_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on "
    "the sample inputs). Enclose your code within delimiters as follows. Ensure that when the python program "
    "runs, it reads the inputs, runs the algorithm and writes output to STDOUT.\n```python\n"
    "# YOUR CODE HERE\n```\n\n"
)


def _known(name: str) -> str:
    if name not in benchmarks():
        meant = nearest(name, list(benchmarks()))
        cure = f'did you mean "{meant}"? ' if meant else ""
        raise ValueError(f'there is no set "{name}": {cure}(the sets are {", ".join(benchmarks())})')
    return name


class BenchmarkParams(Section):
    """Which set, and where it is."""

    set: Annotated[str, AfterValidator(_known)]
    """Name of the set: `gsm8k`, `math-500`, `aime24`, `aime25`, `aime26`, `gpqa-diamond`, `mmlu-pro`,
    `ifeval`, `ifbench`, `humaneval-plus` or `livecodebench-v6`. Unset in `[[eval.datasets]]`: the dataset's
    `name`."""
    path: DataPath | None = None
    """A copy of the set with its own columns: a file of JSON lines, or a folder that the `datasets` library
    reads. None: the set is read from the Hugging Face hub."""
    revision: str | None = None
    """Branch, tag or commit on the hub. None: the commit that rlrun pins (docs/benchmarks.md)."""
    rows: str = Field(default="[:]", pattern=r"^\[(-?\d+)?:(-?\d+)?\]$")
    """Slice of the set: `[:100]` takes its first 100 rows."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.path is not None and self.revision is not None:
            raise ValueError("revision is of the hub, and path is a copy of the set: give one of the two")
        return self


class BenchmarkSet:
    """Row i is the i-th row of the set, as the published prompt."""

    Params = BenchmarkParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"set": "gsm8k"}

    def __init__(self, params: BenchmarkParams) -> None:
        """Raises ValueError if the set cannot be loaded, has no rows, or has other columns."""
        self.params = params
        self._benchmark = benchmarks()[params.set]
        self._records = _records(params, self._benchmark)
        if not len(self._records):
            raise ValueError(f"{self._name} has no rows in {params.rows}")
        _check_columns(self._name, self._benchmark, self._records[0])

    @classmethod
    def preview(cls, params: BenchmarkParams, count: int) -> Iterator[Row | ValueError]:
        """Yields the first rows of a copy; nothing of a set on the hub, which is read when a job starts."""
        if params.path is None:
            return
        rows = cls(params)
        for index in range(min(count, len(rows))):
            try:
                yield rows[index]
            except ValueError as error:
                yield error

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Row:
        """Returns row `index`. Raises ValueError, naming the row, if a column is missing or wrong."""
        values = self._records[index]
        columns = self._benchmark.columns
        try:
            _check_columns(self._name, self._benchmark, values)
            _check_filled(self._benchmark, values)
            read = {name: values[column] for name, column in columns.items()}
            prompt, label, metadata = _FORMS[self._benchmark.form](read, self._benchmark)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise ValueError(f"{self._name}, row {index}: {error}") from error
        return Row(str(index), prompt, label, metadata)

    @property
    def _name(self) -> str:
        return str(self.params.path or self._benchmark.repository)


def _records(params: BenchmarkParams, benchmark: Benchmark) -> Sequence[Mapping[str, Any]]:
    """Returns the rows of the slice, by column."""
    start, end = (int(part) if part else None for part in params.rows[1:-1].split(":"))
    if params.path is not None and Path(params.path).is_file():
        # not splitlines(), which also ends a line at U+2028 and others, inside of JSON's strings
        lines = Path(params.path).read_text(encoding="utf-8-sig").split("\n")
        records = [_record(line, number, params.path) for number, line in enumerate(lines, 1) if line.strip()]
        if not all(isinstance(record, dict) for record in records):
            raise ValueError(f"{params.path} does not have a JSON object in each line")
        return records[start:end]
    table = _table(params, benchmark)
    return table.select(range(len(table))[start:end])  # type: ignore[no-any-return]


def _record(line: str, number: int, path: str) -> Any:
    """Returns the value of a line. Raises ValueError, naming the line, if it is not JSON."""
    try:
        return parse_json(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from None


def _table(params: BenchmarkParams, benchmark: Benchmark) -> Any:
    """Returns the split of a folder, or of the hub at the pinned commit."""
    split = benchmark.split
    if params.path is not None:
        return load_table(HfParams(path=params.path, split=split))
    revision = params.revision or benchmark.revision
    if benchmark.file is not None:
        address = f"hf://datasets/{benchmark.repository}@{revision}/{benchmark.file}"
        return load_table(HfParams(path="json", split=split), address)
    name = benchmark.config
    return load_table(HfParams(path=benchmark.repository, name=name, split=split, revision=revision))


def _check_columns(name: str, benchmark: Benchmark, values: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the columns, for a record that lacks one."""
    if missing := [column for column in benchmark.columns.values() if column not in values]:
        there = ", ".join(map(str, values)) or "nothing"
        raise ValueError(
            f"{name} has no column {', '.join(map(repr, missing))}, which {benchmark.title} has "
            f"(there: {there})"
        )


def _check_filled(benchmark: Benchmark, values: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the column, for a record in which one is null or blank."""
    for key, column in benchmark.columns.items():
        value = values[column]
        if key not in _MAY_BE_EMPTY and (value is None or (isinstance(value, str) and not value.strip())):
            raise ValueError(f"the column {column!r} is empty")


_MAY_BE_EMPTY = ("starter", "metadata")
"""Columns of programs: those that read stdin have no starter code, and no function's name."""
_Made = tuple[str, Any, dict[str, Any]]
"""A prompt, its label, and metadata for the reward."""


def _math(values: Mapping[str, Any], benchmark: Benchmark) -> _Made:
    answer = _word(values["answer"], "answer")
    if benchmark.answer_pattern is not None:
        found = last_match(answer, benchmark.answer_pattern)
        if found is None:
            raise ValueError(f"the answer does not match {benchmark.answer_pattern!r}: {answer[-60:]!r}")
        answer = found.strip()
    return _MATH.format(problem=values["problem"]), answer, {}


def _choices(values: Mapping[str, Any], benchmark: Benchmark) -> _Made:
    options = list(map(str, _list(values["options"], "options")))
    right = str(values["answer"]).strip()
    if right not in list(string.ascii_uppercase[: len(options)]):
        raise ValueError(f"the answer {right!r} is not the letter of one of {len(options)} options")
    return _choice(str(values["question"]), options, right)


def _shuffled_choices(values: Mapping[str, Any], benchmark: Benchmark) -> _Made:
    """The order of the choices follows from the question, so that it is the same in every evaluation."""
    question, right = str(values["question"]).strip(), str(values["right"]).strip()
    options = [right, *(str(values[f"wrong{number}"]).strip() for number in (1, 2, 3))]
    order = [0, 1, 2, 3]
    random.Random(hashlib.sha256(question.encode()).digest()).shuffle(order)
    return _choice(question, [options[place] for place in order], string.ascii_uppercase[order.index(0)])


def _choice(question: str, options: Sequence[str], right: str) -> _Made:
    letters = string.ascii_uppercase[: len(options)]
    shown = "\n".join(f"{letter}) {option}" for letter, option in zip(letters, options, strict=True))
    prompt = _CHOICE.format(letters=letters, question=question, choices=shown)
    return prompt, right, {"choices": list(options), "valid_letters": list(letters)}


def _instructions(values: Mapping[str, Any], benchmark: Benchmark) -> _Made:
    """A table of a column has a key for every argument of the set; those of an instruction are not None."""
    kwargs = [
        {key: value for key, value in table.items() if value is not None}
        for table in _list(values["kwargs"], "kwargs")
    ]
    names = list(_list(values["instructions"], "instructions"))
    if len(names) != len(kwargs) or not names:
        raise ValueError(f"{len(names)} instructions have {len(kwargs)} tables of arguments")
    metadata = {"instruction_id_list": names, "kwargs": kwargs}
    return str(values["prompt"]), None, metadata


def _function(values: Mapping[str, Any], benchmark: Benchmark) -> _Made:
    name = _word(values["entry_point"], "entry_point")
    tests = [f"{values['test']}\ncheck({name})"]
    return _FUNCTION.format(prompt=values["prompt"]), None, {"tests": tests, "entry_point": name}


def _program(values: Mapping[str, Any], benchmark: Benchmark) -> _Made:
    tests = [*parse_json(values["public"]), *_private_tests(values["private"])]
    if not tests:
        raise ValueError("it has no tests, which every answer would pass or fail")
    name = parse_json(values["metadata"] or "{}").get("func_name")
    starter = values["starter"]
    form = _WITH_STARTER.format(starter=starter) if starter else _WITH_STDIN
    prompt = _PROGRAM.format(question=values["question"], format=form)
    if name is None:
        table: dict[str, Any] = {
            "inputs": [test["input"] for test in tests],
            "outputs": [test["output"] for test in tests],
        }
    else:  # one argument in each line, as JSON
        arguments = [[json.loads(line) for line in test["input"].split("\n") if line] for test in tests]
        results = [json.loads(test["output"]) for test in tests]
        table = {"inputs": arguments, "outputs": results, "fn_name": name}
    return prompt, None, {"tests": table}


def _word(value: Any, name: str) -> str:
    """Returns a text or a number as text. Raises TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{name} is {type(value).__name__}, not a text or a number")
    return str(value)


def _list(value: Any, name: str) -> Sequence[Any]:
    """Returns a list. Raises TypeError for anything else, such as its text."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is {type(value).__name__}, not a list")
    return value


class _TextUnpickler(pickle.Unpickler):
    """Reads a pickled text, and nothing that names a class or a function."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"the private tests name {module}.{name}, and only text is read")


def _private_tests(text: str) -> list[dict[str, Any]]:
    """Returns the private tests of LiveCodeBench: JSON, or JSON that is pickled, compressed and in base64."""
    with suppress(ValueError):
        return list(_list(parse_json(text), "private tests"))
    unpacking = zlib.decompressobj()
    try:
        packed = unpacking.decompress(base64.b64decode(text), _MAX_TESTS)
        content = _TextUnpickler(io.BytesIO(packed)).load()
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"the private tests cannot be read: {str(error) or type(error).__name__}") from None
    if not isinstance(content, str):
        raise ValueError(f"the private tests cannot be read: they are {type(content).__name__}, not text")
    return list(_list(parse_json(content), "private tests"))


_FORMS: Mapping[Form, Callable[[Mapping[str, Any], Benchmark], _Made]] = {
    "math": _math,
    "choices": _choices,
    "shuffled_choices": _shuffled_choices,
    "instructions": _instructions,
    "function": _function,
    "program": _program,
}
