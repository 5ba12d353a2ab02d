"""Prompts from Parquet files, read by row group when they are asked for."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from rlrun.plugins.data.rows import RowKeys, SlicedPath, row_of, split_slice
from rlrun.plugins.data.tables import TableSource
from rlrun.plugins.types import Row

GROUPS_IN_MEMORY = 8


class ParquetParams(RowKeys):
    """The file and its columns."""

    path: SlicedPath
    """Parquet file, or a folder of them; `train.parquet@[100:200]` takes some of its rows."""


class Parquet(TableSource):
    """Row i is the i-th row of the file, or of a folder's files in the order of their names.

    At most eight row groups are in memory; shuffled reading is fast where they hold the whole dataset.
    """

    Params = ParquetParams
    api_version = 1

    def __init__(self, params: ParquetParams) -> None:
        """ValueError for a missing, unreadable or empty file."""
        self.params = params
        path, rows = split_slice(params.path)
        self._files = _open(path)
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
        """Yields the first `count` rows, or what is wrong with them."""
        path = split_slice(params.path)[0]
        batch = next(_open(path)[0].iter_batches(batch_size=count), None)
        for number, values in enumerate(batch.to_pylist() if batch is not None else ()):
            try:
                yield row_of(values, params, str(number))
            except ValueError as error:
                yield ValueError(f"{Path(path).name}, row {number}: {error}")

    @classmethod
    def columns(cls, params: ParquetParams) -> list[str]:
        """Returns the names of the columns. ValueError for a missing or unreadable file."""
        return list(_open(split_slice(params.path)[0])[0].schema_arrow.names)

    def _values(self, number: int) -> dict[str, Any]:
        group = bisect_right(self._ends, number)
        table = self._read_group(group)
        place = number - (self._ends[group] - table.num_rows)
        values: dict[str, Any] = table.slice(place, 1).to_pylist()[0]
        return values

    def _load_group(self, group: int) -> Any:
        at, number = self._groups[group]
        return self._files[at].read_row_group(number)


def _open(path: str) -> list[Any]:
    """The file, or the files of a folder. ValueError where there is none, or one that is not Parquet."""
    import pyarrow  # the data extra; checking a spec does not need it
    import pyarrow.parquet

    files = sorted(Path(path).glob("*.parquet")) if Path(path).is_dir() else [Path(path)]
    if not files or not all(file.is_file() for file in files):
        raise ValueError(f"there is no Parquet file {path}")
    try:
        return [pyarrow.parquet.ParquetFile(file, memory_map=True) for file in files]
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error
