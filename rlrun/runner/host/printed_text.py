"""Prints text that may come from elsewhere: names, logs, specs, errors of programs, answers of models.

A terminal obeys control characters: a run's name could clear the screen, change the title of the window, or
write over the line that warns of it. All output of commands goes through `print_text`, or through the
consoles of `rich_console`.
"""

import re
import sys
from typing import TextIO

_UNPRINTABLE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the direction of the text around them
    "\u2028\u2029"  # further ends of lines
    "\ud800-\udfff"  # halves of a pair, as in names of files that are not UTF-8, which cannot be printed
    "]"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def printable(text: str) -> str:
    """Returns a text with unprintable characters written as escapes: `\\u001b`. Lines and tabs stay."""
    return _UNPRINTABLE.sub(_escape, text)


def one_line(text: str) -> str:
    """Returns a name or another short text, in which an end of line is written as an escape, too."""
    return re.sub(r"[\n\t]", _escape, printable(text))


def log_text(text: str) -> str:
    """Returns a part of a log without colours; progress that was written over itself takes several lines."""
    return _COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def print_text(
    *values: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False
) -> None:
    """Prints values as `print` does, with unprintable characters as escapes."""
    text = printable(sep.join(map(str, values)))
    print(text, end=end, file=sys.stdout if file is None else file, flush=flush)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
