"""Prints problems and errors, in colours on a terminal and as plain lines elsewhere."""

import os
import sys
from collections.abc import Sequence

from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Problem


def print_problems(problems: Sequence[Problem]) -> None:
    """Prints every problem, their number, and how to read about them, to standard error."""
    codes = sorted({problem.code for problem in problems})
    count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}; rlrun explain {' '.join(codes)}"
    if not _colours():
        print_text(*problems, count, sep="\n", file=sys.stderr)
        return
    from rlrun.runner.host.rich_console import SafeConsole

    console = SafeConsole(stderr=True, soft_wrap=True)
    for problem in problems:
        _print_problem(console, problem)
    console.print(count, style="bold")


def print_warnings(problems: Sequence[Problem]) -> None:
    """Prints warnings to standard error."""
    for problem in problems:
        print_text(f"warning: {problem}", file=sys.stderr)


def print_error(message: str, code: Code | None = None) -> None:
    """Prints an error, with its code if it has one, to standard error."""
    print("\x1b[1;31merror\x1b[0m" if _colours() else "error", end="", file=sys.stderr)
    print_text(f": {message}" + (f" [{code}]" if code else ""), file=sys.stderr)


def _print_problem(console: "SafeConsole", problem: Problem) -> None:  # type: ignore[name-defined]  # noqa: F821
    from rich.text import Text

    key = (f"{problem.key}: ", "bold cyan") if problem.key else ""
    console.print(
        Text.assemble(
            (f"{problem.place}: ", "bold"), key, (problem.message, "red"), (f" [{problem.code}]", "dim")
        )
    )
    if problem.line:
        gutter = f"  {problem.line} | "
        console.print(Text.assemble((gutter, "dim"), problem.source_line))
        console.print(Text.assemble((f"{' ' * (len(gutter) - 2)}| ", "dim"), (problem.caret, "bold red")))
    if problem.cure:
        console.print(Text.assemble("  ", (problem.cure, "green")))


def _colours() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ
