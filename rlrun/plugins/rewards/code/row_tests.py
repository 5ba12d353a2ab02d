"""The tests that a row has for a program, in the forms that datasets have them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class InputTest:
    """The program reads `stdin` and must print `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """The program's `function`, called with `arguments`, must return `returns`."""

    function: str
    arguments: Sequence[Any]
    returns: Any


@dataclass(frozen=True, slots=True)
class AssertTest:
    """`code` must run after the program without an exception."""

    code: str


Test = InputTest | CallTest | AssertTest


def row_tests(label: Any, metadata: Mapping[str, Any]) -> list[Test]:
    """The tests in a row's metadata under `tests`, or else in its label. ValueError where there are none.

    A list of `{"input", "output"}`, `{"call", "args", "returns"}` and `assert …` texts in any mixture; or one
    table `{"inputs", "outputs"}`, with `fn_name` for calls; or either of them as JSON text.
    """
    given = metadata.get("tests", label)
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = [given]
    if isinstance(given, Mapping):
        given = _table(given)
    if not isinstance(given, Sequence) or not given:
        raise ValueError("the row has no tests: put them under metadata.tests, or in the label")
    return [_test(one) for one in given]


def _table(table: Mapping[str, Any]) -> list[Any]:
    if not {"inputs", "outputs"} <= table.keys():
        return [table]
    pairs = zip(table["inputs"], table["outputs"], strict=True)
    name = table.get("fn_name")
    if name is None:
        return [{"input": given, "output": expected} for given, expected in pairs]
    return [{"call": name, "args": given, "returns": expected} for given, expected in pairs]


def _test(one: Any) -> Test:
    if isinstance(one, str) and one.strip():
        return AssertTest(one)
    if isinstance(one, Mapping) and "call" in one:
        return CallTest(str(one["call"]), list(one.get("args", ())), one.get("returns"))
    if isinstance(one, Mapping) and {"input", "output"} <= one.keys():
        return InputTest(_lines(one["input"]), _lines(one["output"]))
    raise ValueError(f"not a test: {str(one)[:100]!r}")


def _lines(given: Any) -> str:
    """Some datasets have a list of lines."""
    return "\n".join(map(str, given)) if isinstance(given, list) else str(given)
