"""A tool that runs Python programs written by the policy."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlrun.plugins.rewards.code.jailed import Ending
from rlrun.plugins.rewards.code.sandbox import Limits, Sandbox
from rlrun.plugins.tools.schema import function_schema
from rlrun.specs.sections.section import Section

_ABOUT = (
    "Runs a Python program and returns what it prints, and the value of its last line. Nothing is kept from "
    "one call to the next. There is no network."
)
_RUN = """
import ast
tree = ast.parse({code!r}, "program.py")
scope = {{"__name__": "__main__"}}
last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
exec(compile(tree, "program.py", "exec"), scope)
if last is not None:
    value = eval(compile(ast.Expression(last.value), "program.py", "eval"), scope)
    if value is not None:
        print(repr(value))
"""


class PythonParams(Limits):
    """The limits of a program, and of their number."""

    concurrency: int = Field(default=4, ge=1)
    """Number of programs that run at the same time; further calls wait."""


class PythonArguments(Section):
    """The arguments of a call."""

    code: str
    """The program."""


class Python:
    """Runs a program in a sandbox and returns its output, and the last line of the traceback if it fails.

    As in a notebook, the value of a last line that is an expression is printed too. The sandbox is that of
    the reward `code`: the program has no network, sees only Python's installation on the disk, and has limits
    of time, memory, processes, files and output.
    """

    Params = PythonParams
    api_version = 1

    def __init__(self, params: PythonParams) -> None:
        """Raises SandboxError if this machine cannot isolate programs."""
        self.schema = function_schema("python", _ABOUT, PythonArguments)
        self._sandbox = Sandbox(params)
        self._free = asyncio.Semaphore(params.concurrency)

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Returns the program's output. Raises ValueError for arguments that do not fit."""
        code = PythonArguments.model_validate(arguments).code
        async with self._free:
            running = asyncio.create_task(asyncio.to_thread(self._sandbox.run, _RUN.format(code=code), b""))
            # A cancelled call does not end the thread, which runs until the program ends at its own limit.
            ending = await asyncio.shield(running)
        return _describe_ending(ending)


def _describe_ending(ending: Ending) -> str:
    printed = ending.output.decode(errors="replace").rstrip("\n")
    if not ending.problem:
        return printed or "(no output)"
    return f"{printed}\n{ending.problem}".lstrip("\n")
