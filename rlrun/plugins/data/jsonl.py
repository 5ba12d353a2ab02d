"""Prompts from a file of JSON lines. Each line is read on demand, so a file may be larger than memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.models.json_files import parse_json
from rlrun.plugins.data.rows import RowKeys, SlicedPath, first_of_each_prompt, row_of, split_slice
from rlrun.plugins.data.text_files import BEGINNING, beginning_of_text
from rlrun.plugins.types import Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np

_READ_WHOLE = 1 << 16
"""A preview of a file of at most this many bytes shows its first lines only."""
_NAMING_ROWS = 16
"""Number of rows whose keys are collected as the names of columns."""
_SHOWN = 40
"""Number of characters of the first line that an error message quotes."""


class JsonlParams(RowKeys):
    """The file, and the keys of the values in each line."""

    path: SlicedPath
    """File of JSON lines; `train.jsonl@[100:200]` takes a slice of its rows, with Python's indices. The file
    may be in an object store, `s3://bucket/train.jsonl`."""


class Jsonl:
    """Row i is the i-th line of the slice; blank lines do not count."""

    Params = JsonlParams
    api_version = 1

    def __init__(self, params: JsonlParams) -> None:
        """Finds where each line begins.

        Raises ValueError for a file that is missing, empty or of another format.
        """
        self.params = params
        path, rows = split_slice(params.path)
        self.path = Path(path)
        check_line_file(self.path)
        offsets, lines = _index_lines(self.path)
        self._offsets, self._lines = offsets[rows], lines[rows]
        if not len(self._offsets):
            raise ValueError(f"{params.path} has no rows (the file has {len(offsets)})")
        if params.unique:
            first = first_of_each_prompt(self)
            self._offsets, self._lines = self._offsets[first], self._lines[first]

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Row:
        """Returns row `index`. Raises ValueError for a broken line, naming the file and the line."""
        number = str(self._lines[index])
        with self.path.open("rb") as file:
            file.seek(self._offsets[index])
            line = file.readline()
        return _row(line, self.params, number, self.path)

    @classmethod
    def preview(cls, params: JsonlParams, count: int) -> Iterator[Row | ValueError]:
        """Yields about `count` rows, the first ones and some from the rest of the file.

        A broken row is yielded as a ValueError. Raises ValueError for a file that is missing, empty or of
        another format.
        """
        path = Path(split_slice(params.path)[0])
        check_line_file(path)
        for where, line in _some_lines(path, count):
            try:
                yield _row(line, params, where, path)
            except ValueError as error:
                yield error

    @classmethod
    def columns(cls, params: JsonlParams) -> list[str]:
        """Returns the keys of some of the rows, in the order of their first appearance.

        Raises ValueError for a file that is missing, empty or of another format.
        """
        path = Path(split_slice(params.path)[0])
        check_line_file(path)
        columns: dict[str, None] = {}
        for _, line in _some_lines(path, _NAMING_ROWS):
            with suppress(ValueError):
                values = parse_json(line)
                columns |= dict.fromkeys(values) if isinstance(values, dict) else {}
        return list(columns)


def _row(line: bytes, params: RowKeys, row_id: str, path: Path) -> Row:
    where = f"{path.name}:{row_id}"
    try:
        values = parse_json(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 ({error})") from error
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    try:
        return row_of(values, params, row_id, path.parent)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _some_lines(path: Path, count: int) -> Iterator[tuple[str, bytes]]:
    """Yields lines, each with its number, or with its byte offset if it is far into a large file."""
    size = path.stat().st_size
    head = count if size <= _READ_WHOLE else (count + 1) // 2
    with path.open("rb") as file:
        numbered = ((str(number), line) for number, line in enumerate(file, start=1) if not line.isspace())
        yield from itertools.islice(numbered, head)
        for part in range(1, count - head + 1):
            file.seek(part * (size // (count - head + 1)))
            file.readline()  # skips the rest of the line that the seek landed in
            offset, line = file.tell(), file.readline()
            if line and not line.isspace():
                yield f"byte {offset}", line


def _index_lines(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the byte offset and the number (from 1) of every line that is not blank."""
    offsets, numbers, position = [], [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                offsets.append(position)
                numbers.append(number)
            position += len(line)
    return np.array(offsets, dtype=np.int64), np.array(numbers, dtype=np.int64)


def check_line_file(path: Path) -> None:
    """Raises ValueError, with the cure, for a file that does not hold one JSON object in each line."""
    beginning = beginning_of_text(path, "JSON lines")
    line = next((line for line in beginning.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()), b"")
    if not line and len(beginning) < BEGINNING:
        raise ValueError(f"{path} has no rows")
    if line.strip().startswith(b"[") or line.strip() == b"{":
        inner = ".[]" if line.strip().startswith(b"[") else "."
        raise ValueError(
            f"{path} is one JSON value over several lines, and rlrun reads one object in each line: "
            f"jq -c '{inner}' {path.name} > rows.jsonl"
        )
    if line and path.suffix in (".csv", ".tsv"):
        raise ValueError(f'{path} is a CSV file, and rlrun reads JSON lines: use type = "csv"')
    if line and not line.strip().startswith(b"{") and not _is_json(line):
        raise ValueError(
            f"{path} is not a file of JSON lines, it begins with {_quoted(line)}: write each row as an "
            'object in a line of its own, {"prompt": …, "label": …}'
        )


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _quoted(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
