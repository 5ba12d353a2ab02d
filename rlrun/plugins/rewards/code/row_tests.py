"""Reads the tests of a row, in the formats that are common in datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.models.json_files import parse_json


@dataclass(frozen=True, slots=True)
class InputTest:
    """A test in which the program reads `stdin` and must print `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """A test in which the program's `function`, called with `arguments`, must return `returns`."""

    function: str
    arguments: Sequence[Any]
    returns: Any


@dataclass(frozen=True, slots=True)
class AssertTest:
    """A test in which `code` must run after the program without an exception."""

    code: str
    entry_point: str | None = None
    """The name under test, if the row gives it: `names_under_test` says what it changes."""


Test = InputTest | CallTest | AssertTest


def row_tests(label: Any, metadata: Mapping[str, Any]) -> list[Test]:
    """Returns the tests in a row's metadata under `tests`, or else in its label. Raises ValueError without
    tests.

    Tests are a list that may mix `{"input", "output"}`, `{"call", "args", "returns"}` and `assert …` texts,
    or one table `{"inputs", "outputs"}`, with `fn_name` for calls. Both may be given as JSON text. Metadata
    may name the function under test of `assert` tests as `entry_point` or `fn_name`.
    """
    tests = metadata.get("tests", label)
    if isinstance(tests, str):
        try:
            tests = parse_json(tests)
        except ValueError:
            tests = [tests]
    try:
        if isinstance(tests, Mapping):
            tests = _read_table(tests)
        if not isinstance(tests, Sequence) or not tests:
            raise ValueError("the row has no tests: put them under metadata.tests, or in the label")
        entry_point = metadata.get("entry_point") or metadata.get("fn_name")
        return [_read_test(test, str(entry_point) if entry_point else None) for test in tests]
    except TypeError as error:
        raise ValueError(f"the row's tests cannot be read: {error}") from None


def _read_table(table: Mapping[str, Any]) -> list[Any]:
    if not {"inputs", "outputs"} <= table.keys():
        return [table]
    pairs = zip(table["inputs"], table["outputs"], strict=True)
    name = table.get("fn_name")
    if name is None:
        return [{"input": stdin, "output": stdout} for stdin, stdout in pairs]
    return [{"call": name, "args": arguments, "returns": result} for arguments, result in pairs]


def _read_test(test: Any, entry_point: str | None) -> Test:
    if isinstance(test, str) and test.strip():
        return AssertTest(test, entry_point)
    if isinstance(test, Mapping) and "call" in test:
        return CallTest(str(test["call"]), list(test.get("args", ())), test.get("returns"))
    if isinstance(test, Mapping) and {"input", "output"} <= test.keys():
        return InputTest(_join_lines(test["input"]), _join_lines(test["output"]))
    raise ValueError(f"not a test: {str(test)[:100]!r}")


def _join_lines(text: Any) -> str:
    """Returns the text as one string; some datasets store a list of lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)
