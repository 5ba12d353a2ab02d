"""Computes the output of harmless programs such as `seq` and `dirname`, without running them."""

import os
import re
from collections.abc import Callable, Sequence
from itertools import islice

_MAX_NUMBERS = 10_000
_CLASSES = {
    "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "[:lower:]": "abcdefghijklmnopqrstuvwxyz",
    "[:digit:]": "0123456789",
    "[:space:]": " \t\n\r\f\v",
}
_FORMAT = re.compile(r"%(?:(?P<percent>%)|(?P<spec>[-0 +#]{0,5}\d{0,3}(?:\.\d{1,3})?)(?P<kind>[sdi]))")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def output_of(name: str, arguments: Sequence[str], stdin: str) -> str | None:
    """Returns the output of a program with the input `stdin`; None if it cannot be computed."""
    program = _PROGRAMS.get(name)
    try:
        return program(arguments, stdin) if program else None
    except (ValueError, IndexError, KeyError, StopIteration):
        return None


def formatted(arguments: Sequence[str]) -> str:
    """Returns the output of `printf FORMAT ARGUMENT…`. Raises ValueError if an argument does not fit."""
    layout, values = _escaped(arguments[0]), list(arguments[1:])
    parts = []
    while True:
        before = len(values)
        parts.append(_FORMAT.sub(lambda match: _filled(match, values), layout))
        if not values or len(values) == before:
            return "".join(parts)


def _filled(match: re.Match[str], values: list[str]) -> str:
    if match["percent"]:
        return "%"
    value = values.pop(0) if values else ""
    if match["kind"] == "s":
        return f"%{match['spec']}s" % value
    return f"%{match['spec']}d" % int(value or 0)


def _escaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text)


def _echo(arguments: Sequence[str], stdin: str) -> str:
    words = [*arguments]
    while words and words[0] in ("-n", "-e"):
        words.pop(0)
    return " ".join(words)


def _sequence(arguments: Sequence[str], stdin: str) -> str | None:
    first, step, last = {1: (1, 1), 2: (0, 1), 3: (0, 0)}[len(arguments)] + (int(arguments[-1]),)
    first = int(arguments[0]) if len(arguments) > 1 else first
    step = int(arguments[1]) if len(arguments) == 3 else step
    numbers = range(first, last + (1 if step > 0 else -1), step)
    return None if len(numbers) > _MAX_NUMBERS else "\n".join(map(str, islice(numbers, _MAX_NUMBERS)))


def _basename(arguments: Sequence[str], stdin: str) -> str:
    names = [argument for argument in arguments if argument != "--"]
    name = names[0].rstrip("/").rpartition("/")[2]
    return name.removesuffix(names[1]) if len(names) > 1 and name != names[1] else name


def _dirname(arguments: Sequence[str], stdin: str) -> str:
    folder, slash, _ = (
        next(argument for argument in arguments if argument != "--").rstrip("/").rpartition("/")
    )
    return folder.rstrip("/") or slash or "."


def _translate(arguments: Sequence[str], stdin: str) -> str:
    if arguments[0] in ("-d", "--delete"):
        return "".join(character for character in stdin if character not in _characters(arguments[1]))
    old, new = _characters(arguments[0]), _characters(arguments[1])
    return stdin.translate({ord(a): new[min(i, len(new) - 1)] for i, a in enumerate(old)})


def _characters(text: str) -> str:
    text = _CLASSES.get(text, _escaped(text))
    span = re.compile(r"(.)-(.)")
    return span.sub(lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))), text)


def _count(arguments: Sequence[str], stdin: str) -> str | None:
    return str(stdin.count("\n") + bool(stdin) - stdin.endswith("\n")) if [*arguments] == ["-l"] else None


def _first_lines(arguments: Sequence[str], stdin: str) -> str:
    count = int("".join(arguments).lstrip("-n") or 10)
    return "\n".join(stdin.split("\n")[:count])


_PROGRAMS: dict[str, Callable[[Sequence[str], str], str | None]] = {
    "echo": _echo,
    "printf": lambda arguments, stdin: formatted(arguments),
    "seq": _sequence,
    "basename": _basename,
    "dirname": _dirname,
    "realpath": lambda arguments, stdin: os.path.normpath(arguments[-1]),
    "tr": _translate,
    "wc": _count,
    "head": _first_lines,
    "cat": lambda arguments, stdin: None if arguments else stdin,
}
