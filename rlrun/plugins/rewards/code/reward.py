"""Runs the program in a response against the tests of its row."""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlrun.models.json_files import parse_json
from rlrun.plugins.deadline import scoring_timeout
from rlrun.plugins.rewards.code import calls, names_under_test
from rlrun.plugins.rewards.code.sandbox import Limits, Sandbox
from rlrun.plugins.types import Row, Sample


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
BUDGET = 0.8
"""The share of `scoring.timeout` that all tests of a program together may take."""
_FENCED = re.compile(r"```[ \t]*+(?:python3?|py)?[ \t]*+\n(.*?)```", re.DOTALL | re.IGNORECASE)
_CALLS = Path(calls.__file__).read_text()
_NAMES = Path(names_under_test.__file__).read_text()


class CodeParams(Limits):
    """What a program may use, and how its tests become a score."""

    aggregate: Literal["all", "share"] = "all"
    """`all`: 1 if every test passes, else 0. `share`: the share of tests that pass."""
    timeout: float = Field(default=4.0, gt=0)
    """Seconds for one test; all tests of a program together have four fifths of `scoring.timeout`."""
    output: int = Field(default=1_000_000, ge=1)
    """Number of bytes that a program may print; a program that prints more is ended."""


class Code:
    """Runs the last fenced block as Python in a sandbox, or all text after `</think>` if there is no block.

    A program has no network, sees nothing of the disk but Python and its packages, and is stopped at its
    limits together with everything that it started. A test gives standard input and the expected output
    (compared word by word, line by line), calls a function, or is an `assert` statement: see `row_tests`.

    The program never sees expected outputs, results or `assert` statements. These statements run in a
    separate sandbox, which sends calls to the program's sandbox and receives plain data. A test fails if it
    has not finished when the time of the program is over, or if its result cannot be read. In the statements,
    builtins and modules are Python's, except a function under test that is named like one (docs/sandbox.md).
    """

    Params = CodeParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: CodeParams) -> None:
        """Raises SandboxError if this machine cannot isolate programs."""
        self.params = params
        self._sandbox = Sandbox(params)
        self._budget = BUDGET * (scoring_timeout() or math.inf)

    @classmethod
    def check_row(cls, params: CodeParams, row: Row) -> None:
        """Raises ValueError for a row without tests."""
        row_tests(row.label, row.metadata)

    def score(self, sample: Sample) -> float:
        """Returns the score, from 0 to 1. Raises ValueError for a row without tests."""
        row = sample.prompt.row
        tests = row_tests(row.label, row.metadata)
        program = program_of(sample.text)
        if not program.strip():
            return 0.0
        end = time.monotonic() + self._budget
        passed = 0
        for test in tests:
            seconds = end - time.monotonic()
            if seconds > 0 and self._passes(program, test, seconds):
                passed += 1
            elif self.params.aggregate == "all":
                return 0.0
        return passed / len(tests)

    def _passes(self, program: str, test: Test, seconds: float) -> bool:
        run = self._sandbox.run
        if isinstance(test, InputTest):
            ending = run(program, test.stdin.encode(errors="surrogatepass"), seconds=seconds)
            return not ending.problem and _words(_text(ending.output)) == _words(test.stdout)
        if isinstance(test, AssertTest):
            tests = f"run_tests(*names_under_test({test.code!r}, {test.entry_point!r}))"
            judge, served = f"{_CALLS}\n{_NAMES}\n{tests}", f"{_CALLS}\nserve({program!r})"
            return not self._sandbox.run_beside(judge, served, seconds).problem
        request = json.dumps([test.function, test.arguments]).encode()
        ending = run(f"{_CALLS}\ncall_once({program!r})", b"", request, seconds)
        return not ending.problem and _is(ending.reply, test.returns)


def program_of(text: str) -> str:
    """Returns the last fenced block after the thinking, or all text after it."""
    text = text.rpartition("</think>")[2]
    blocks = _FENCED.findall(text)
    return str(blocks[-1]) if blocks else text


def _words(text: str) -> list[list[str]]:
    """Returns the words of each line, without blank lines at the end."""
    return [line.split() for line in text.rstrip().split("\n")]


def _text(output: bytes) -> str:
    return output.decode(errors="replace")


def _is(reply: bytes, expected: object) -> bool:
    """Returns whether a reply is the expected value as JSON, where tuples are lists."""
    try:
        return bool(json.loads(reply) == json.loads(json.dumps(expected)))
    except (ValueError, RecursionError):
        return False


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
