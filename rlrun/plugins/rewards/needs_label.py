"""The base of rewards that compare a response with the row's label."""

from numbers import Number
from typing import Any

from rlrun.plugins.types import Row

_SHOWN = 60
"""Characters of a label that a message quotes."""


class NeedsLabel:
    """Refuses rows whose label is not text or a number, and would be compared as Python prints it."""

    @classmethod
    def check_row(cls, params: Any, row: Row) -> None:
        """Raises ValueError for a row without a label, or with one of another type."""
        if row.label is None:
            raise ValueError(
                "compares with the row's label, and the row has none; set label_key to the key of the answer"
            )
        if not isinstance(row.label, (str, Number)):
            raise ValueError(
                f"compares with a label of text or a number, and the row's is {type(row.label).__name__}: "
                f"{str(row.label)[:_SHOWN]}"
            )
        if not str(row.label).strip():
            raise ValueError("compares with the row's label, and the row's is empty")
