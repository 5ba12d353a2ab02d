"""Prompts from a file of JSON lines, read when they are asked for: a file may be larger than memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.plugins.data.rows import RowKeys, SlicedPath, first_of_each_prompt, row_of, split_slice
from rlrun.plugins.types import Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class JsonlParams(RowKeys):
    """The file and the keys that a line's values stand under."""

    path: SlicedPath
    """File of JSON lines; `train.jsonl@[100:200]` takes some of its rows, counted as in Python."""


class Jsonl:
    """Row i is the file's i-th line that is not blank, counted after the slice."""

    Params = JsonlParams
    api_version = 1

    def __init__(self, params: JsonlParams) -> None:
        """Finds where lines begin. ValueError for a missing or empty file."""
        self.params = params
        path, rows = split_slice(params.path)
        self.path = Path(path)
        if not self.path.is_file():
            raise ValueError(f"there is no file {self.path}")
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
        """ValueError for a broken line, naming the file, the line and what is wrong."""
        where = f"{self.path.name}:{self._lines[index]}"
        with self.path.open("rb") as file:
            file.seek(self._offsets[index])
            line = file.readline()
        try:
            return row_of(json.loads(line), self.params, str(self._lines[index]))
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: not UTF-8 ({error})") from error
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from error
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


def _index_lines(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Byte offset and number (from 1) of every line that is not blank."""
    offsets, numbers, position = [], [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                offsets.append(position)
                numbers.append(number)
            position += len(line)
    return np.array(offsets, dtype=np.int64), np.array(numbers, dtype=np.int64)
