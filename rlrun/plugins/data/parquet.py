"""Prompts from Parquet files, read by row group when they are asked for."""

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from rlrun.plugins.data.rows import RowKeys, SlicedPath, first_of_each_prompt, row_of, split_slice
from rlrun.plugins.types import Row

GROUPS_IN_MEMORY = 8


class ParquetParams(RowKeys):
    """The file and its columns."""

    path: SlicedPath
    """Parquet file, or a folder of them; `train.parquet@[100:200]` takes some of its rows."""


class Parquet:
    """Row i is the i-th row of the file, or of a folder's files in the order of their names.

    At most eight row groups are in memory; shuffled reading is fast where they hold the whole dataset.
    """

    Params = ParquetParams
    api_version = 1

    def __init__(self, params: ParquetParams) -> None:
        """ValueError for a missing, unreadable or empty file."""
        import pyarrow  # the data extra; checking a spec does not need it
        import pyarrow.parquet

        self.params = params
        path, rows = split_slice(params.path)
        files = sorted(Path(path).glob("*.parquet")) if Path(path).is_dir() else [Path(path)]
        if not files or not all(file.is_file() for file in files):
            raise ValueError(f"there is no Parquet file {path}")
        try:
            self._files = [pyarrow.parquet.ParquetFile(file, memory_map=True) for file in files]
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as Parquet: {error}") from error
        self._name = Path(path).name
        self._groups = [
            (at, group) for at, file in enumerate(self._files) for group in range(file.num_row_groups)
        ]
        sizes = [self._files[at].metadata.row_group(group).num_rows for at, group in self._groups]
        self._ends = list(accumulate(sizes))
        self._read_group = lru_cache(GROUPS_IN_MEMORY)(self._load_group)
        self._rows: Any = range(self._ends[-1] if self._ends else 0)[rows]
        if not len(self._rows):
            raise ValueError(
                f"{params.path} has no rows (the file has {self._ends[-1] if self._ends else 0})"
            )
        if params.unique:
            self._rows = [self._rows[index] for index in first_of_each_prompt(self)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        """ValueError for a row without its columns, naming the file and the row."""
        number = self._rows[index]
        group = bisect_right(self._ends, number)
        table = self._read_group(group)
        place = number - (self._ends[group] - table.num_rows)
        try:
            return row_of(table.slice(place, 1).to_pylist()[0], self.params, str(number))
        except ValueError as error:
            raise ValueError(f"{self._name}, row {number}: {error}") from error

    def _load_group(self, group: int) -> Any:
        at, number = self._groups[group]
        return self._files[at].read_row_group(number)
