"""Mistakes in a spec: findings name a key path, problems a file, line and column."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.positions import KeyPath, line_and_column

_QUOTES = dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‘’‚‛′", "'")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|#.*")
_WORD = re.compile(r"\w+")
_FOREIGN = ("CYRILLIC", "GREEK")


@dataclass(frozen=True, slots=True, eq=False)
class SpecText:
    """A text that sets keys: a file, or the argument of one `--set`."""

    name: str
    """The name that messages show: `specs/job.toml`, `--set`."""
    text: str
    folder: Path
    """The folder that relative paths in the text start from."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake at a key path, before the place of the key in the files is known."""

    path: KeyPath
    message: str
    """What is wrong, with the value found. It is printed after the key: `must be at least 1, found 0`."""
    cure: str | None = None
    """What to do about it."""
    suggestion: str | None = None
    """The valid name or value that was probably meant."""
    found: Any = None
    """The value found; None if there is none."""
    at_value: bool = True
    """Whether to underline the value rather than the key."""
    related: tuple[KeyPath, ...] = ()
    """Other keys that the finding depends on; it is dropped where one of them is already broken."""
    secret: bool = False
    """Whether the value must not be shown."""
    code: Code | None = None
    """The kind; None takes that of the group of checks which reports the finding."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding with its place in a file.

    Example: `job.toml:12:6: trainer.lr: must be greater than 0, found -1.0`.
    """

    key: str
    """Dotted key path; empty for syntax."""
    message: str
    file: str
    line: int
    """Counted from 1; 0 if the problem concerns no line, for instance a file that does not exist."""
    column: int
    """Counted from 1, in characters."""
    source_line: str
    """The line itself."""
    width: int
    """Characters of the line that are at fault, from `column`."""
    cure: str | None = None
    suggestion: str | None = None
    found: str | None = None
    """The value found, as Python would print it."""
    code: Code = Code.CONFLICT
    """The kind of problem, which `rlrun explain` explains."""

    @property
    def place(self) -> str:
        """`file:line:column`, or the file alone."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    @property
    def headline(self) -> str:
        """Key and message."""
        return f"{self.key}: {self.message}" if self.key else self.message

    @property
    def caret(self) -> str:
        """The line under the source line: blanks (tabs kept) and carets."""
        before = self.source_line[: self.column - 1]
        return "".join("\t" if c == "\t" else " " for c in before) + "^" * max(self.width, 1)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.headline} [{self.code}]"]
        if self.line:
            gutter = len(str(self.line))
            lines += [f"  {self.line} | {self.source_line}", f"  {' ' * gutter} | {self.caret}"]
        if self.cure:
            lines.append(f"  {self.cure}")
        return "\n".join(lines)


class SpecError(ValueError):
    """All problems of a spec."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def problem_at(finding: Finding, source: SpecText, start: int, end: int) -> Problem:
    """Returns the problem of a finding about characters `start` to `end` of a source."""
    line, column = line_and_column(source.text, start)
    source_line = source.text.split("\n")[line - 1]
    cure = look_alike(source_line) or _override_cure(finding, source) or finding.cure
    width = max(1, min(end - start, len(source_line) - column + 1))
    if finding.secret:
        source_line = source_line[: column - 1] + "*" * width
    return Problem(
        key=dotted(finding.path),
        message=finding.message,
        file=source.name,
        line=line,
        column=column,
        source_line=source_line,
        width=width,
        cure=cure,
        suggestion=finding.suggestion,
        found=None if finding.found is None else format_value(finding.found),
        code=finding.code or Code.CONFLICT,
    )


def _override_cure(finding: Finding, source: SpecText) -> str | None:
    """Returns how to write a `--set` whose key belongs to another table; None for every other finding.

    A key inside of the value that was set is another finding: `--set 'trackers=[{key = 1}]'`.
    """
    suggestion = finding.suggestion or ""
    if source.name != f"--set {dotted(finding.path)}" or finding.at_value:
        return None
    if suggestion.rpartition(".")[2] != finding.path[-1]:
        return None
    value = source.text.partition("=")[2].strip()
    return f"write --set {suggestion}={value}"


def problem_without_place(
    message: str, file: str, code: Code, cure: str | None = None, suggestion: str | None = None
) -> Problem:
    """Returns a problem of a whole file."""
    return Problem("", message, file, 0, 0, "", 0, cure, suggestion, code=code)


def coded(findings: Iterable[Finding], code: Code) -> list[Finding]:
    """Returns the findings of a group of checks; those without a code get the group's."""
    return [finding if finding.code else replace(finding, code=code) for finding in findings]


def dotted(path: KeyPath) -> str:
    """`("rewards", 0, "weight")` as `rewards.0.weight`, which `--set` takes too."""
    return ".".join(map(str, path))


def format_value(value: object) -> str:
    """A value as TOML would write it, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    is_text = isinstance(value, str)
    text = (
        json.dumps(value, ensure_ascii=False)
        if is_text
        else "a table"
        if isinstance(value, dict)
        else str(value)
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


def look_alike(text: str) -> str | None:
    """Returns what to do about the first such character of a statement; None if there is none.

    Quotes, blanks and any letters outside of strings count; in strings, words that mix Latin letters with
    Cyrillic or Greek ones.
    """
    bare = _QUOTED.sub(lambda found: " " * len(found[0]), text)
    for character in bare:
        if character in _QUOTES:
            return f"{character} is a typographic quotation mark: write {_QUOTES[character]}"
        if not character.isascii():
            return f"{_named(character)}: retype it on a Latin keyboard"
    for word in _WORD.findall(text):
        if re.search("[A-Za-z]", word):
            for character in word:
                if unicodedata.name(character, "").startswith(_FOREIGN):
                    return f"{_named(character)}: retype {word!r} on a Latin keyboard"
    return None


def _named(character: str) -> str:
    name = unicodedata.name(character, "a control character")
    return f"{character!r} (U+{ord(character):04X}) is {name}, not what it looks like"
