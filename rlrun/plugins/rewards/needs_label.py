"""The base of rewards that compare a response with the row's label."""

from typing import Any

from rlrun.plugins.types import Row


class NeedsLabel:
    """Refuses rows without a label, which would otherwise be compared with the text "None"."""

    @classmethod
    def check_row(cls, params: Any, row: Row) -> None:
        """Raises ValueError for a row without a label."""
        if row.label is None:
            raise ValueError(
                "compares with the row's label, and the row has none; set label_key to the key of the answer"
            )
