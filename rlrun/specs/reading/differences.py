"""What differs between two documents, value by value."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.specs.reading.reference import as_toml


@dataclass(frozen=True, slots=True)
class Difference:
    """One value; None stands for a key that is not there or not set."""

    key: str
    """Dotted."""
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {as_toml(self.before)} -> {as_toml(self.after)}"


def find_differences(before: Any, after: Any, key: str = "") -> Iterator[Difference]:
    """Values that differ, tables and arrays of tables gone through; an array of values is one value."""
    if before == after and type(before) is type(after):
        return
    parts = [_parts(value) for value in (before, after)]
    if all(part is None for part in parts) or any(
        part is None and value is not None for part, value in zip(parts, (before, after), strict=True)
    ):
        if before != after:
            yield Difference(key, before, after)
        return
    old, new = (part or {} for part in parts)
    for name in dict.fromkeys((*old, *new)):
        yield from find_differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)


def _parts(value: Any) -> dict[str, Any] | None:
    """The parts of a table, or of an array of tables; None for any other value."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return {str(number): each for number, each in enumerate(value)}
    return None
