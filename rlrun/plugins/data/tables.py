"""What the sources of tables have in common: rows by number, some of which are used."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from rlrun.plugins.data.rows import RowKeys, first_of_each_prompt, row_of
from rlrun.plugins.types import Row


class TableSource(ABC):
    """Row i is the i-th row of the table that is used."""

    params: RowKeys

    def _use(self, numbers: Sequence[int], name: str, nothing: str) -> None:
        """Use the rows of these numbers; ValueError(nothing) where there are none. `name` is for errors."""
        if not len(numbers):
            raise ValueError(nothing)
        self._numbers = numbers
        self._name = name
        if self.params.unique:
            self._numbers = [numbers[index] for index in first_of_each_prompt(self)]

    @abstractmethod
    def _values(self, number: int) -> dict[str, Any]:
        """The table's row of this number, by column."""

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Row:
        """ValueError for a row without its columns, naming it."""
        number = self._numbers[index]
        try:
            return row_of(self._values(number), self.params, str(number))
        except ValueError as error:
            raise ValueError(f"{self._name}, row {number}: {error}") from error
