"""Parses TOML and goes on after a syntax error, so that one pass finds them all.

The statement at fault is blanked out (with the keys below it, when it is a table header) and the rest parsed
again: line numbers stay what they are.
"""

import re
from dataclasses import dataclass
from typing import Any

import tomli

from rlrun.specs.problems.findings import Finding, Problem, Source, problem_at
from rlrun.specs.problems.positions import KeyPath, find_positions, line_and_column

_MOST_ERRORS = 20
_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Cannot redefine", "Duplicate")
_COLON = re.compile(r"\s*[\w.\"'-]+\s*:")
_VALUE = re.compile(r"\s*(?P<key>[\w.\"' -]+?)\s*=\s*(?P<value>[^#\n]*?)\s*(?:#.*)?")
_CONSTANTS = {"True": "true", "False": "false", "yes": "true", "no": "false", "on": "true", "off": "false"}
_NOTHING = {"None", "null", "nil", "none", ""}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What could be read of a source."""

    data: dict[str, Any]
    text: str
    """The text that `data` came from: the source with statements at fault blanked out."""
    problems: tuple[Problem, ...]


def parse(source: Source) -> Parsed:
    """Parse a source; every syntax error that can be told from the ones before it becomes a problem."""
    text = source.text
    problems: list[Problem] = []
    while True:
        try:
            return Parsed(tomli.loads(text), text, tuple(problems))
        except tomli.TOMLDecodeError as error:
            line, _ = line_and_column(text, min(error.pos, len(text)))
            first = _statement_start(text, line)
            problems.append(_problem(source, text, error, first, line))
            text = _without(text, first, line if len(problems) < _MOST_ERRORS else text.count("\n") + 1)
        except RecursionError:
            finding = Finding((), "arrays or inline tables are nested too deeply", "use fewer levels")
            return Parsed({}, "", (*problems, problem_at(finding, source, 0, 1)))


def _statement_start(text: str, line: int) -> int:
    """First line of the statement that fails on `line`: everything before it parses."""
    lines = text.split("\n")
    for first in range(line, 1, -1):
        try:
            tomli.loads("\n".join(lines[: first - 1]))
        except tomli.TOMLDecodeError:
            continue
        return first
    return 1


def _without(text: str, first: int, last: int) -> str:
    """The text, as long as it was, without lines `first` to `last` and the keys of a header there."""
    lines = text.split("\n")
    if lines[first - 1].lstrip().startswith("["):
        while last < len(lines) and not lines[last].lstrip().startswith("["):
            last += 1
    blank = [" " * len(line) for line in lines[first - 1 : last]]
    return "\n".join([*lines[: first - 1], *blank, *lines[last:]])


def _problem(source: Source, text: str, error: tomli.TOMLDecodeError, first: int, line: int) -> Problem:
    lines = text.split("\n")
    line_start = sum(len(each) + 1 for each in lines[: first - 1])
    start = (
        error.pos
        if first == line and not error.msg.startswith(_TWICE)
        else line_start + _indent(lines[first - 1])
    )
    end = line_start + len(lines[first - 1])
    message, cure = _explain(error.msg, lines[first - 1], "\n".join(lines[: first - 1]))
    return problem_at(Finding((), message, cure), source, min(start, max(end, line_start)), end)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _explain(message: str, statement: str, before: str) -> tuple[str, str | None]:
    """What tomli says, in the words of someone who writes a spec, and a cure where one is known."""
    if message.startswith(
        ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Cannot redefine", "Duplicate")
    ):
        return _twice(statement, before)
    if statement.lstrip().startswith("{"):
        cure = "write the spec in TOML; `rlrun init --data FILE` writes one that reads a file of rows"
        return "this is JSON, not a spec", cure
    if _COLON.match(statement) and "=" not in statement.split(":", maxsplit=1)[0]:
        return "a key and its value must be separated by an equals sign", "write `key = value`"
    if message == "Invalid value" and (found := _VALUE.fullmatch(statement)):
        return _invalid_value(found["key"], found["value"])
    if message.startswith("Unclosed array"):
        return "this array is not closed", "add the missing `]`"
    if message.startswith(("Unterminated string", "Illegal character '\\n'")) or message == 'Expected "\'"':
        return "this string is not closed", "add the missing quotation mark"
    if message.startswith("Unescaped"):
        return "this escape sequence does not exist in TOML", "write a backslash in single quotes: 'a\\b'"
    if message.startswith("Expected ']'"):
        return "this header is not closed", "add the missing `]`"
    if message.startswith("Expected newline"):
        number = _VALUE.fullmatch(statement)
        if number and (number_cure := _number_cure(number["key"], number["value"])):
            return f"{number['value']} is not a TOML value", number_cure
        return "this line has more than one key and one value", "write each key and value on its own line"
    return f"not TOML: {message[0].lower()}{message[1:]}", None


def _invalid_value(key: str, value: str) -> tuple[str, str]:
    if value in _CONSTANTS:
        return f"{value} is not a TOML value", f"write `{key} = {_CONSTANTS[value]}`"
    if value in _NOTHING:
        return f"`{key}` has no value", "add a value, or remove the key to use its default"
    if re.fullmatch(r"[+-]?\.\d+", value):
        return f"{value} is not a TOML value", f"write `{key} = {value.replace('.', '0.')}`"
    return f"{value} is not a TOML value", f'write a string in quotation marks: `{key} = "{value}"`'


def _number_cure(key: str, value: str) -> str | None:
    """How to write a number with commas, a unit, zeros before it or a semicolon after it; else None."""
    if value.endswith(";"):
        return f"lines of TOML end without a semicolon: `{key} = {value.rstrip('; ')}`"
    if re.fullmatch(r"\d{1,3}(,\d{3})+", value):
        return f"numbers have no commas: `{key} = {value.replace(',', '')}`"
    if re.fullmatch(r"\d+,\d+(e[+-]?\d+)?", value):
        return f"decimals have a dot: `{key} = {value.replace(',', '.')}`"
    if re.fullmatch(r"0+\d+", value):
        return f"numbers have no zeros before them: `{key} = {value.lstrip('0')}`"
    if found := re.fullmatch(r"(\d+)\.(e[+-]?\d+)?", value):
        return f"a digit follows the dot: `{key} = {found[1]}.0{found[2] or ''}`"
    if found := re.fullmatch(r"(\d+)_*([kKmMgG])[iI]?[bB]?", value):
        digits = found[1] + "_000" * ("kmg".index(found[2].lower()) + 1)
        return f"numbers have no units: `{key} = {digits}`"
    return None


def _twice(statement: str, before: str) -> tuple[str, str]:
    """A key or table that is there already; says where."""
    found = re.match(r"\s*\[*\s*([\w.\"'-]+)", statement)
    name = found[1] if found else "this"
    marks = find_positions(before)
    path = _path_of(name, statement, marks)
    first = f" (first in line {line_and_column(before, marks[path].key_start)[0]})" if path in marks else ""
    if statement.lstrip().startswith("["):
        return f"[{name}] is defined twice{first}", "put the keys of both under one header"
    return f"`{name}` is set twice in this table{first}", "remove one of the two"


def _path_of(name: str, statement: str, marks: dict[KeyPath, Any]) -> KeyPath:
    path = tuple(name.split("."))
    if statement.lstrip().startswith("[") or not marks:
        return path
    tables = [known for known in marks if known[-len(path) :] == path]
    return tables[-1] if tables else path
