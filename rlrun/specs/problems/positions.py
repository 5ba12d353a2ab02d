"""Where every key and value of a TOML document stands.

tomli says what a document means and forgets where it said so. This scanner walks the same text, which tomli
has already accepted, and notes the place of every key path; what it finds is held against tomli by a fuzz
test.
"""

import re
from dataclasses import dataclass

import tomli

KeyPath = tuple[str | int, ...]
"""`("rewards", 0, "weight")`; numbers count the elements of arrays and of `[[…]]` tables."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Offsets into the text, ends exclusive. A table header and an array element are their own values."""

    key_start: int
    key_end: int
    value_start: int
    value_end: int


_BLANK = re.compile(r"[ \t]*+")
_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*+)*+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]++")
_STRING = re.compile(
    r'"""(?:\\.|[^"\\]|"{1,2}(?!"))*+"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*+'{3,5}"
    r'|"(?:\\.|[^"\\\n])*+"'
    r"|'[^'\n]*+'",
    re.DOTALL,
)
_DATE_AND_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*+")
_BARE_VALUE = re.compile(r"[^\s,\[\]{}#]++")


def find_positions(text: str) -> dict[KeyPath, Mark]:
    """Marks of every key path in `text`, which tomli parses; line ends are `\\n`."""
    return _Scanner(text).scan()


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Both from 1; columns count characters."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


class _Scanner:
    """One pass over the text; `at` is the offset of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.marks: dict[KeyPath, Mark] = {}
        self.array_lengths: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, Mark]:
        """The document: headers and key/value pairs."""
        table: KeyPath = ()
        self._skip(_GAP)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_GAP)
        return self.marks

    def _header(self) -> KeyPath:
        start = self.at
        is_array = self.text.startswith("[[", start)
        self.at += 2 if is_array else 1
        keys = self._keys()
        self.at += 2 if is_array else 1
        path: KeyPath = ()
        for name, key_start, key_end in keys[:-1]:
            path = self._enter((*path, name))
            self.marks.setdefault(path, Mark(key_start, key_end, start, self.at))
        name, key_start, key_end = keys[-1]
        path = (*path, name)
        mark = Mark(key_start, key_end, start, self.at)
        if is_array:
            number = self.array_lengths.get(path, 0)
            self.array_lengths[path] = number + 1
            self.marks.setdefault(path, mark)
            path = (*path, number)
        self.marks[path] = mark
        return path

    def _enter(self, path: KeyPath) -> KeyPath:
        """Inside an array of tables, a header means the newest element."""
        length = self.array_lengths.get(path)
        return path if length is None else (*path, length - 1)

    def _pair(self, table: KeyPath) -> None:
        keys = self._keys()
        self.at += 1  # the equals sign
        self._skip(_BLANK)
        path = (*table, *(name for name, _, _ in keys))
        start, end = self._value(path)
        for depth, (_, key_start, key_end) in enumerate(keys[:-1], start=len(table) + 1):
            self.marks.setdefault(path[:depth], Mark(key_start, key_end, start, end))
        self.marks[path] = Mark(keys[-1][1], keys[-1][2], start, end)

    def _keys(self) -> list[tuple[str, int, int]]:
        """A dotted key up to what follows it: each part with where it starts and ends."""
        parts = []
        while True:
            self._skip(_BLANK)
            start = self.at
            quoted = self.text[start] in "\"'"
            self._skip(_STRING if quoted else _BARE_KEY)
            written = self.text[start : self.at]
            parts.append((next(iter(tomli.loads(f"{written} = 0"))) if quoted else written, start, self.at))
            self._skip(_BLANK)
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _value(self, path: KeyPath) -> tuple[int, int]:
        start = self.at
        match self.text[start]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._skip(_STRING)
            case _:
                self._skip(_DATE_AND_TIME if _DATE_AND_TIME.match(self.text, start) else _BARE_VALUE)
        return start, self.at

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        self._skip(_GAP)
        number = 0
        while self.text[self.at] != "]":
            start, end = self._value((*path, number))
            self.marks[*path, number] = Mark(start, end, start, end)
            number += 1
            self._skip_comma()
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        self._skip(_GAP)
        while self.text[self.at] != "}":
            self._pair(path)
            self._skip_comma()
        self.at += 1

    def _skip_comma(self) -> None:
        self._skip(_GAP)
        if self.text[self.at] == ",":
            self.at += 1
            self._skip(_GAP)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        assert found, (
            f"no {pattern.pattern} at offset {self.at}: tomli accepted what the scanner does not know"
        )
        self.at = found.end()
