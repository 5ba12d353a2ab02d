"""Prompts from Parquet files, read on demand, one row group at a time."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from rlrun.plugins.data.rows import RowKeys, SlicedPath, row_of, split_slice
from rlrun.plugins.data.tables import TableSource
from rlrun.plugins.types import Row

GROUPS_IN_MEMORY = 8
_ALWAYS_READ = 64 << 20
_MAX_RATIO = 200
"""The largest ratio of a column's bytes in memory to those in the file, above `_ALWAYS_READ` bytes."""
_NUMBER_BYTES = 8
"""Bytes in memory of a number, and of a text's entry: equal texts are kept once, as in the file."""
_DELTA_CODED = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}
"""Encodings of texts that cannot be read as a dictionary. In the first one each text repeats the beginning of
the one before, so that the file does not say how large they are in memory."""
_BATCH_ROWS = 64
"""Rows of such a column that are read at a time."""


class ParquetParams(RowKeys):
    """The file and its columns."""

    path: SlicedPath
    """Parquet file, or a folder of Parquet files; `train.parquet@[100:200]` takes a slice of the rows. A file
    may be in an object store, `s3://bucket/train.parquet`."""


class Parquet(TableSource):
    """Row i is the i-th row of the file, or of the folder's files in the order of their names.

    At most eight row groups are kept in memory. Shuffled reading is fast only if the dataset has no more
    row groups than that.
    """

    Params = ParquetParams
    api_version = 1

    def __init__(self, params: ParquetParams) -> None:
        """Raises ValueError for a missing, unreadable or empty file."""
        self.params = params
        path, rows = split_slice(params.path)
        self._files = _open(path)
        self.folder = _folder(path)
        self._is_delta_coded = [
            any(_is_delta_coded(file, number) for number in range(file.metadata.num_columns))
            for file in self._files
        ]
        self._groups = [
            (at, group) for at, file in enumerate(self._files) for group in range(file.num_row_groups)
        ]
        sizes = [self._files[at].metadata.row_group(group).num_rows for at, group in self._groups]
        self._ends = list(accumulate(sizes))
        self._read_group = lru_cache(GROUPS_IN_MEMORY)(self._load_group)
        count = sum(sizes)
        nothing = f"{params.path} has no rows (the file has {count})"
        self._use(range(count)[rows], Path(path).name, nothing)

    @classmethod
    def preview(cls, params: ParquetParams, count: int) -> Iterator[Row | ValueError]:
        """Yields the first `count` rows; a broken row is yielded as a ValueError."""
        path = split_slice(params.path)[0]
        file = _open(path)[0]
        for number, values in enumerate(_read(lambda: _first_rows(file, count), path)):
            try:
                yield row_of(values, params, str(number), _folder(path))
            except ValueError as error:
                yield ValueError(f"{Path(path).name}, row {number}: {error}")

    @classmethod
    def columns(cls, params: ParquetParams) -> list[str]:
        """Returns the names of the columns. Raises ValueError for a missing or unreadable file."""
        return list(_open(split_slice(params.path)[0])[0].schema_arrow.names)

    def _values(self, number: int) -> dict[str, Any]:
        group = bisect_right(self._ends, number)
        offset = number - (self._ends[group - 1] if group else 0)
        [values] = _read(lambda: self._read_group(group).slice(offset, 1).to_pylist(), self._name)
        return dict(values)

    def _load_group(self, group: int) -> Any:
        at, number = self._groups[group]
        return _row_group(self._files[at], number, in_batches=self._is_delta_coded[at])


def _folder(path: str) -> Path:
    return Path(path) if Path(path).is_dir() else Path(path).parent


def _open(path: str) -> list[Any]:
    """Opens the file, or the files of the folder.

    Raises ValueError if there is no file, or if one of them is not Parquet.
    """
    import pyarrow  # needs the data extra; checking a spec does not need it
    import pyarrow.parquet

    files = sorted(Path(path).glob("*.parquet")) if Path(path).is_dir() else [Path(path)]
    if not files or not all(file.is_file() for file in files):
        raise ValueError(f"there is no Parquet file {path}")
    opened = []
    for file in files:
        whole = _read(partial(pyarrow.parquet.ParquetFile, file, memory_map=True), file)
        _check_sizes(whole, file)
        texts = [
            leaf.path
            for number, leaf in enumerate(_leaves(whole))
            if leaf.physical_type == "BYTE_ARRAY" and not _is_delta_coded(whole, number)
        ]
        opened.append(
            pyarrow.parquet.ParquetFile(file, memory_map=True, metadata=whole.metadata, read_dictionary=texts)
        )
    return opened


def _read(read: Callable[[], Any], path: object) -> Any:
    """Returns the result of a call of pyarrow. Raises ValueError where it cannot read the file."""
    import pyarrow

    try:
        return read()
    except (pyarrow.ArrowException, OSError, OverflowError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error


def _leaves(file: Any) -> list[Any]:
    return [file.schema.column(number) for number in range(file.metadata.num_columns)]


def _check_sizes(file: Any, path: Path) -> None:
    """Raises ValueError, naming the row group and the column, for data that would fill the memory."""
    leaves = _leaves(file)
    for group in range(file.num_row_groups):
        described = file.metadata.row_group(group)
        for number, leaf in enumerate(leaves):
            column = described.column(number)
            width = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _NUMBER_BYTES
            size = column.total_uncompressed_size + max(column.num_values, described.num_rows) * width
            if size > max(_ALWAYS_READ, _MAX_RATIO * column.total_compressed_size):
                raise ValueError(
                    f"{path}, row group {group}, column {leaf.path!r}: {column.total_compressed_size} bytes "
                    f"of the file would become {size} in memory, and at most {_MAX_RATIO} times as many are "
                    "read: prompts do not compress that well"
                )


def _is_delta_coded(file: Any, number: int) -> bool:
    groups = (file.metadata.row_group(group) for group in range(file.num_row_groups))
    return any(_DELTA_CODED.intersection(group.column(number).encodings) for group in groups)


def _row_group(file: Any, group: int, *, in_batches: bool) -> Any:
    """Returns a row group as a table. Raises ValueError where it needs too much memory."""
    import pyarrow

    if not in_batches:
        return file.read_row_group(group)
    described = file.metadata.row_group(group)
    columns = [described.column(number) for number in range(described.num_columns)]
    limit = max(_ALWAYS_READ, _MAX_RATIO * sum(column.total_compressed_size for column in columns))
    batches, size = [], 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group]):
        batches.append(batch)
        size += batch.nbytes
        if size > limit:
            raise ValueError(f"row group {group} would become more than {limit} bytes in memory")
    return pyarrow.Table.from_batches(batches)


def _first_rows(file: Any, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in file.iter_batches(batch_size=min(count, _BATCH_ROWS)):
        rows += batch.to_pylist()
        if len(rows) >= count:
            break
    return rows[:count]
