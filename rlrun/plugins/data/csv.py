"""Prompts from a CSV file. Each row is read on demand, so a file may be larger than memory."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from rlrun.plugins.data.rows import RowKeys, SlicedPath, row_of, split_slice
from rlrun.plugins.data.tables import TableSource
from rlrun.plugins.data.text_files import beginning_of_text
from rlrun.plugins.types import Row

DELIMITERS = (",", ";", "\t")
"""The usual delimiters."""
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that spreadsheets write at the beginning of a UTF-8 file."""


class CsvParams(RowKeys):
    """The file, its delimiter and its columns."""

    path: SlicedPath
    """CSV file whose first line names the columns; `train.csv@[100:200]` takes a slice of its rows, with
    Python's indices. The file may be in an object store, `s3://bucket/train.csv`."""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    r"""The character between two values of a row: `";"`, or `"\t"` for a tab."""


@dataclass(frozen=True, slots=True)
class _Record:
    """One row of the file, or its line of column names."""

    offset: int
    """Where it begins in the file, in bytes."""
    line: int
    """Number of its first line, from 1. A quoted value may contain line breaks."""
    values: list[str]


class Csv(TableSource):
    """Row i is the i-th row of the slice, and its id is the number of the row's line. Blank lines do not
    count, spaces after a delimiter are skipped, and every value is text.
    """

    Params = CsvParams
    api_version = 1

    def __init__(self, params: CsvParams) -> None:
        """Finds where each row begins.

        Raises ValueError for a file that is missing, empty or of another format.
        """
        self.params: CsvParams = params
        path, rows = split_slice(params.path)
        self.path, self.folder = Path(path), Path(path).parent
        self._columns = _columns(self.path, params.delimiter)
        self._offsets = {record.line: record.offset for record in _rows(self.path, params.delimiter)}
        lines = list(self._offsets)
        nothing = f"{params.path} has no rows (the file has {len(lines)})"
        self._use(lines[rows], self.path.name, nothing)

    @classmethod
    def preview(cls, params: CsvParams, count: int) -> Iterator[Row | ValueError]:
        """Yields the first `count` rows; a broken row is yielded as a ValueError."""
        path = Path(split_slice(params.path)[0])
        columns = _columns(path, params.delimiter)
        for record in islice(_rows(path, params.delimiter), count):
            try:
                yield row_of(_by_column(columns, record), params, str(record.line), path.parent)
            except ValueError as error:
                yield ValueError(f"{path.name}, row {record.line}: {error}")

    @classmethod
    def columns(cls, params: CsvParams) -> list[str]:
        """Returns the names of the columns. Raises ValueError for a missing or unreadable file."""
        return _columns(Path(split_slice(params.path)[0]), params.delimiter)

    def _values(self, number: int) -> dict[str, Any]:
        with self.path.open("rb") as file:
            file.seek(self._offsets[number])
            return _by_column(self._columns, next(_records(file, self.path, self.params.delimiter)))


def _columns(path: Path, delimiter: str) -> list[str]:
    """Returns the values of the first line. Raises ValueError if they cannot be names of columns."""
    beginning_of_text(path, "CSV")
    with path.open("rb") as file:
        record = next(_records(file, path, delimiter), None)
    if record is None:
        raise ValueError(f"{path} has no rows")
    names = record.values
    other = next((each for each in DELIMITERS if each != delimiter and each in names[0]), None)
    if len(names) == 1 and other is not None:
        shown = "\\t" if other == "\t" else other
        raise ValueError(f'{path} has only the column {names[0]!r}: set delimiter = "{shown}"')
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path}: its first line must name the columns, and {repeated[0]!r} is there twice")
    return names


def _rows(path: Path, delimiter: str) -> Iterator[_Record]:
    """Yields the rows, without the line of column names."""
    with path.open("rb") as file:
        yield from islice(_records(file, path, delimiter), 1, None)


def _records(file: BinaryIO, path: Path, delimiter: str) -> Iterator[_Record]:
    """Yields the records from the file's position on. Line numbers count from there.

    Raises ValueError, naming the line, for a malformed record: where the next one begins is not known.
    """
    offset, line = file.tell(), 0

    def decoded() -> Iterator[str]:
        nonlocal offset, line
        for text in file:
            mark = _MARK if offset == 0 else b""
            offset, line = offset + len(text), line + 1
            yield text.removeprefix(mark).decode("utf-8")

    reader = csv.reader(decoded(), delimiter=delimiter, skipinitialspace=True, strict=True)
    while True:
        begin, first = offset, line + 1
        try:
            values = next(reader)  # takes only the lines of this record
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path.name}:{first}: not CSV ({error})") from error
        except UnicodeDecodeError as error:
            cure = "convert it, for example: iconv -f WINDOWS-1252 -t UTF-8"
            raise ValueError(f"{path.name}:{line}: not UTF-8 ({error}): {cure}") from error
        if values:
            yield _Record(begin, first, values)


def _by_column(columns: list[str], record: _Record) -> dict[str, Any]:
    if len(record.values) != len(columns):
        raise ValueError(
            f"it has {len(record.values)} values, and the first line names {len(columns)} columns"
        )
    return dict(zip(columns, record.values, strict=True))
