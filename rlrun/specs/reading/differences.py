"""Compares two documents value by value."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.specs.reading.reference import as_toml


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs between two documents. None means that the key is missing or not set."""

    key: str
    """Dotted key path."""
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {as_toml(self.before)} -> {as_toml(self.after)}"


def find_differences(before: Any, after: Any, key: str = "") -> Iterator[Difference]:
    """Yields the values that differ, also inside tables and arrays of tables; other arrays are one value."""
    if before == after and type(before) is type(after):
        return
    tables = [_as_table(value) for value in (before, after)]
    if all(table is None for table in tables) or any(
        table is None and value is not None for table, value in zip(tables, (before, after), strict=True)
    ):
        if before != after:
            yield Difference(key, before, after)
        return
    old, new = (table or {} for table in tables)
    for name in dict.fromkeys((*old, *new)):
        yield from find_differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)


def _as_table(value: Any) -> dict[str, Any] | None:
    """Returns a table, or an array of tables by index, as a dict; None for any other value."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return {str(number): item for number, item in enumerate(value)}
    return None
