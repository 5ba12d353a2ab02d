"""The base class of rewards that compare a response with the row's label."""

from numbers import Number
from typing import Any

from rlrun.plugins.types import Row

_SHOWN = 60
"""Number of characters of a label that an error message quotes."""


class NeedsLabel:
    """Refuses rows whose label is neither text nor a number, since it could only be compared as Python prints
    it.
    """

    @classmethod
    def check_row(cls, params: Any, row: Row) -> None:
        """Raises ValueError if the row has no label, an empty one, or one of another type."""
        if row.label is None:
            raise ValueError(
                "compares with the row's label, and the row has none; set label_key to the answer's key"
            )
        if not isinstance(row.label, (str, Number)):
            raise ValueError(
                f"compares with a label of text or a number, and the row's is {type(row.label).__name__}: "
                f"{str(row.label)[:_SHOWN]}"
            )
        if not str(row.label).strip():
            raise ValueError("compares with the row's label, and the row's is empty")
