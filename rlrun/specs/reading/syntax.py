"""Parses TOML, and continues after a syntax error, so that one pass finds all of them.

The wrong statement is replaced by blanks (for a table header, with the keys below it), and the text is parsed
again. Line numbers therefore stay the same.
"""

import re
from dataclasses import dataclass
from typing import Any

import tomli

from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, Problem, SpecText, problem_at
from rlrun.specs.problems.positions import KeyPath, find_positions, line_and_column

_MAX_ERRORS = 20
_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Cannot redefine", "Duplicate")
_JSON = re.compile(r"\s*(\{|\[\s*\{)")
"""Matches the start of an object or of an array of objects; no TOML begins so."""
_COLON = re.compile(r"\s*[\w.\"'-]+\s*:")
_VALUE = re.compile(r"\s*(?P<key>[\w.\"' -]+?)\s*=\s*(?P<value>[^#\n]*?)\s*(?:#.*)?")
_CONSTANTS = {"True": "true", "False": "false", "yes": "true", "no": "false", "on": "true", "off": "false"}
_NOTHING = {"None", "null", "nil", "none", ""}


@dataclass(frozen=True, slots=True)
class Parsed:
    """The readable part of a source."""

    data: dict[str, Any]
    text: str
    """The text of `data`: the source with wrong statements blanked out."""
    problems: tuple[Problem, ...]


def parse(source: SpecText) -> Parsed:
    """Parses a source, with a problem per syntax error that does not follow from an earlier one."""
    text = source.text
    if start := _JSON.match(text):
        cure = "write the spec in TOML; `rlrun init --data FILE` writes one that reads a file of rows"
        finding = Finding((), "this is JSON, not a spec", cure, code=Code.SYNTAX)
        return Parsed({}, "", (problem_at(finding, source, start.end() - 1, start.end()),))
    problems: list[Problem] = []
    while True:
        try:
            return Parsed(tomli.loads(text), text, tuple(problems))
        except tomli.TOMLDecodeError as error:
            line, _ = line_and_column(text, min(error.pos, len(text)))
            first = _statement_start(text, line)
            problems.append(_problem(source, text, error, first, line))
            text = _without(text, first, line if len(problems) < _MAX_ERRORS else text.count("\n") + 1)
        except RecursionError:
            message, cure = "arrays or inline tables are nested too deeply", "use fewer levels"
            finding = Finding((), message, cure, code=Code.SYNTAX)
            return Parsed({}, "", (*problems, problem_at(finding, source, 0, 1)))


def _statement_start(text: str, line: int) -> int:
    """Returns the first line of the statement that fails on `line`: the text before it parses."""
    lines = text.split("\n")
    for first in range(line, 1, -1):
        try:
            tomli.loads("\n".join(lines[: first - 1]))
        except tomli.TOMLDecodeError:
            continue
        return first
    return 1


def _without(text: str, first: int, last: int) -> str:
    """Returns the text with lines `first` to `last`, and the keys below a header there, blanked out."""
    lines = text.split("\n")
    if lines[first - 1].lstrip().startswith("["):
        while last < len(lines) and not lines[last].lstrip().startswith("["):
            last += 1
    blank = [" " * len(line) for line in lines[first - 1 : last]]
    return "\n".join([*lines[: first - 1], *blank, *lines[last:]])


def _problem(source: SpecText, text: str, error: tomli.TOMLDecodeError, first: int, line: int) -> Problem:
    lines = text.split("\n")
    line_start = sum(len(earlier) + 1 for earlier in lines[: first - 1])
    start = (
        error.pos
        if first == line and not error.msg.startswith(_TWICE)
        else line_start + _indent(lines[first - 1])
    )
    end = line_start + len(lines[first - 1])
    message, cure = _explain(error.msg, lines[first - 1], "\n".join(lines[: first - 1]))
    finding = Finding((), message, cure, code=Code.SYNTAX)
    return problem_at(finding, source, min(start, max(end, line_start)), end)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _explain(message: str, statement: str, before: str) -> tuple[str, str | None]:
    """Returns tomli's message in the words of a spec's author, and a cure where there is one."""
    if message.startswith(_TWICE):
        return _twice(statement, before)
    if _COLON.match(statement) and "=" not in statement.split(":", maxsplit=1)[0]:
        return "a key and its value must be separated by an equals sign", "write `key = value`"
    if message == "Invalid value" and (assignment := _VALUE.fullmatch(statement)):
        return _invalid_value(assignment["key"], assignment["value"])
    if message.startswith("Unclosed array"):
        return "this array is not closed", "add the missing `]`"
    if message.startswith(("Unterminated string", "Illegal character '\\n'")) or message == 'Expected "\'"':
        return "this string is not closed", "add the missing quotation mark"
    if message.startswith("Unescaped"):
        return "this escape sequence does not exist in TOML", "write a backslash in single quotes: 'a\\b'"
    if message.startswith("Expected ']'"):
        return "this header is not closed", "add the missing `]`"
    if message.startswith("Expected newline"):
        assignment = _VALUE.fullmatch(statement)
        if assignment and (number_cure := _number_cure(assignment["key"], assignment["value"])):
            return f"{assignment['value']} is not a TOML value", number_cure
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
    """Returns how to write a number with commas, a unit, leading zeros or a semicolon in TOML; else None."""
    if value.endswith(";"):
        return f"remove the semicolon: `{key} = {value.rstrip('; ')}`"
    if re.fullmatch(r"\d{1,3}(,\d{3})+", value):
        return f"write numbers without commas: `{key} = {value.replace(',', '')}`"
    if re.fullmatch(r"\d+,\d+(e[+-]?\d+)?", value):
        return f"write decimals with a dot: `{key} = {value.replace(',', '.')}`"
    if re.fullmatch(r"0+\d+", value):
        return f"write numbers without leading zeros: `{key} = {value.lstrip('0')}`"
    if decimal := re.fullmatch(r"(\d+)\.(e[+-]?\d+)?", value):
        return f"a digit must follow the dot: `{key} = {decimal[1]}.0{decimal[2] or ''}`"
    if with_unit := re.fullmatch(r"(\d+)_*([kKmMgG])[iI]?[bB]?", value):
        digits = with_unit[1] + "_000" * ("kmg".index(with_unit[2].lower()) + 1)
        return f"write numbers without units: `{key} = {digits}`"
    return None


def _twice(statement: str, before: str) -> tuple[str, str]:
    """Returns message and cure for a key or table that is already defined, with the line where it is."""
    name_match = re.match(r"\s*\[*\s*([\w.\"'-]+)", statement)
    name = name_match[1] if name_match else "this"
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
    candidates = [marked for marked in marks if marked[-len(path) :] == path]
    return candidates[-1] if candidates else path
