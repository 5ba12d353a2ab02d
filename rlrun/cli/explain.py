"""`rlrun explain`: prints the page of an error code, or the page docs/errors.md."""

import re
from pathlib import Path
from typing import Annotated

import typer

from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.codes import Code

ERROR_PAGES = Path(__file__).parents[1] / "specs" / "error_pages"
"""Folder with a page for each code: its cause, an example, the cure."""
_LINK = re.compile(r"\[([\w-]+\.md)\]\([^)]*\)")
_INTRODUCTION = """# Errors

Every problem of a spec and every error that ends a job is printed with a code in brackets, which names its
kind. The same code is `code` in `rlrun validate --json` and `error_code` in `rlrun status --json`.
`rlrun explain E0201` prints the section of a code. A code is never given to another kind of error.

| codes | about |
| --- | --- |
| E01 | reading the spec |
| E02 | single keys |
| E03 | settings that do not fit together |
| E04 | files, packages and run folders |
| E05 | jobs that have started |
"""


def _complete_code(start: str) -> list[str]:
    """Returns the codes that begin with what is typed."""
    return [code for code in Code if code.startswith(start.upper())]


def command(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODE", autocompletion=_complete_code, help="Codes, as in E0201. Default: list all codes."
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page docs/errors.md instead: all codes.")
    ] = False,
) -> None:
    """Explain an error code: its cause, an example, and what to do."""
    if markdown:
        print_text(errors_markdown(), end="")
    elif codes:
        print_text("\n\n".join(_for_terminal(_page(_code_named(name))) for name in codes))
    else:
        print_text(*(_title(code) for code in Code), sep="\n")


def errors_markdown() -> str:
    """Returns the page docs/errors.md: every code with its page as a section."""
    return "\n".join([_INTRODUCTION, *(f"#{_page(code)}" for code in Code)])


def _page(code: Code) -> str:
    return (ERROR_PAGES / f"{code}.md").read_text("utf-8")


def _title(code: Code) -> str:
    return _page(code).partition("\n")[0].removeprefix("# ")


def _for_terminal(page: str) -> str:
    """Returns a page without Markdown's heading, fences and links."""
    lines = [line for line in page.strip().removeprefix("# ").split("\n") if not line.startswith("```")]
    return _LINK.sub(r"docs/\1", "\n".join(lines))


def _code_named(name: str) -> Code:
    """Returns a code. Raises ValueError if there is none of this name."""
    try:
        return Code(name.upper())
    except ValueError:
        raise ValueError(f"there is no error code {name}; rlrun explain lists all codes") from None
