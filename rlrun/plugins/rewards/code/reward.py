"""Whether the program in a response passes its row's tests."""

import json
import re
import secrets
from typing import Literal

from pydantic import Field

from rlrun.plugins.rewards.code.row_tests import CallTest, InputTest, Test, row_tests
from rlrun.plugins.rewards.code.sandbox import Limits, Sandbox
from rlrun.plugins.types import Row, Sample
from rlrun.specs.section import Section

_FENCED = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)

_CALL = """
import json as _json, sys as _sys
_name, _arguments = _json.loads(_sys.stdin.read())
_found = globals().get(_name) or getattr(globals()["Solution"](), _name)
_result = _found(*_arguments)
print(); print({mark!r} + _json.dumps(_result))
"""
_ASSERT = """
{code}
print(); print({mark!r})
"""


class CodeParams(Section):
    """What a program may use, and what counts."""

    aggregate: Literal["all", "share"] = "all"
    """`all`: 1 where every test passes, else 0. `share`: the share that does."""
    timeout: float = Field(default=4.0, gt=0)
    """Seconds for a test; all tests of a sample must also fit into `scoring.timeout`."""
    memory: int = Field(default=512, ge=64)
    """MiB of address space for each process of a program."""
    processes: int = Field(default=8, ge=1)
    """Processes and threads of a program."""
    scratch: int = Field(default=16, ge=1)
    """MiB of files it may write, in a folder of its own that is gone afterwards."""
    output: int = Field(default=1_000_000, ge=1)
    """Bytes it may print."""


class Code:
    """Runs the last fenced block (without one, the whole of what follows `</think>`) as Python in a sandbox.

    A program has no network, sees nothing of the disk but Python and its packages, and is stopped at its
    limits; what it starts ends with it. Tests give standard input and expected output (compared word by word,
    line by line), or call a function, or are `assert` statements: see `row_tests`. Expected outputs and
    results never enter the sandbox; `assert` statements do.
    """

    Params = CodeParams
    api_version = 1

    def __init__(self, params: CodeParams) -> None:
        """SandboxError where this machine does not let programs be locked in."""
        self.params = params
        limits = Limits(params.timeout, params.memory, params.processes, params.scratch, params.output)
        self._sandbox = Sandbox(limits)

    @classmethod
    def check_row(cls, params: CodeParams, row: Row) -> None:
        """Raises ValueError for a row without tests."""
        row_tests(row.label, row.metadata)

    def score(self, sample: Sample) -> float:
        """From 0 to 1. ValueError for a row without tests."""
        row = sample.prompt.row
        tests = row_tests(row.label, row.metadata)
        program = program_of(sample.text)
        if not program.strip():
            return 0.0
        passed = 0
        for test in tests:
            if self._passes(program, test):
                passed += 1
            elif self.params.aggregate == "all":
                return 0.0
        return passed / len(tests)

    def _passes(self, program: str, test: Test) -> bool:
        if isinstance(test, InputTest):
            ending = self._sandbox.run(program, test.stdin.encode())
            return not ending.problem and _words(ending.output.decode(errors="replace")) == _words(
                test.stdout
            )
        mark = secrets.token_hex(16)
        if isinstance(test, CallTest):
            given = json.dumps([test.function, test.arguments]).encode()
            ending = self._sandbox.run(program + _CALL.format(mark=mark), given)
        else:
            ending = self._sandbox.run(program + _ASSERT.format(code=test.code, mark=mark), b"")
        last = ending.output.decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        if ending.problem or not last.startswith(mark):
            return False
        return not isinstance(test, CallTest) or json.loads(last.removeprefix(mark)) == _as_json(test.returns)


def program_of(text: str) -> str:
    """The last fenced block after the thinking, or all of it."""
    text = text.rpartition("</think>")[2]
    blocks = _FENCED.findall(text)
    return str(blocks[-1]) if blocks else text


def _words(text: str) -> list[list[str]]:
    """Lines of words; blank lines at the end do not count."""
    return [line.split() for line in text.rstrip().split("\n")]


def _as_json(value: object) -> object:
    """Tuples are lists once they have left the sandbox."""
    return json.loads(json.dumps(value))
