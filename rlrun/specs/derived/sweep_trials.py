"""Expands the keys of `[sweep]` into the values of each trial.

[sweep.keys]                                        trainer.lr   seed
trainer.lr = [1e-6, 1e-5]                 grid      1e-6         0
seed = { min = 0, max = 1, count = 2 }    ─────▶    1e-6         1
                                                    1e-5         0
                                                    1e-5         1
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.sweep_section import SweepSpec

RANGE_KEYS = frozenset({"min", "max", "count", "log"})
_DIGITS = 6
"""Significant digits of the numbers of a range."""

Values = dict[str, Any]
"""The values of a trial by their dotted keys."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two bounds, which belong to the range; whole numbers if both bounds are."""

    low: float
    high: float
    count: int | None = None
    """Number of values in a grid."""
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def values(self) -> list[float]:
        """Returns `count` evenly spaced values without duplicates; of their logarithms if `log`."""
        assert self.count is not None
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        steps = [low + (high - low) * number / max(self.count - 1, 1) for number in range(self.count)]
        exact = [math.exp(step) if self.log else step for step in steps]
        rounded = [round(value) if self.is_whole else float(f"{value:.{_DIGITS}g}") for value in exact]
        return list(dict.fromkeys(rounded))


Axis = list[Any] | Range
"""The values that a key may have."""


def axes_of(sweep: SweepSpec) -> dict[str, Axis]:
    """Returns the values of each dotted key, in the order of the spec, for a table without problems."""
    axes: dict[str, Axis] = {}
    for path, value in sweep_leaves(sweep.keys):
        is_range = isinstance(value, dict)
        axes[dotted_key(path)] = as_range(value) if is_range else list(value)
    return axes


def sweep_leaves(table: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yields the path and the value of each key to vary; a table is a range if it has `min` or `max`."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value and not {"min", "max"} & value.keys():
            yield from sweep_leaves(value, (*path, key))
        else:
            yield (*path, key), value


def dotted_key(path: KeyPath) -> str:
    """Returns the key of a spec; a part of the path may itself have dots."""
    return ".".join(map(str, path))


def as_range(table: Mapping[str, Any]) -> Range:
    """Returns the range of a table."""
    return Range(table["min"], table["max"], table.get("count"), table.get("log", False))


def allows(axes: Mapping[str, Axis], values: Mapping[str, Any]) -> bool:
    """Returns whether a trial may have these values: one of each key's values, and no other keys."""
    return values.keys() == axes.keys() and all(_has(axis, values[key]) for key, axis in axes.items())


def _has(axis: Axis, value: Any) -> bool:
    if isinstance(axis, Range):
        return type(value) in (int, float) and axis.low <= value <= axis.high
    return any(type(one) is type(value) and one == value for one in axis)


def grid(axes: Mapping[str, Axis]) -> list[Values]:
    """Returns every combination of the values; the last key changes fastest."""
    columns = [axis.values() if isinstance(axis, Range) else axis for axis in axes.values()]
    return [dict(zip(axes, combination, strict=True)) for combination in product(*columns)]
