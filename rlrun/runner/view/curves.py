"""The metrics of a run as columns, read from metrics.jsonl as it grows."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlrun.runner.records.growing_lines import GrowingLines
from rlrun.runner.records.metrics_file import parse_metrics
from rlrun.specs.step_names import STEP_LIMIT

MAX_POINTS = 2000
"""Points of a curve that are sent to the page; longer curves are reduced."""
MAX_NAMES = 2000
"""Metrics of a run that are shown. A job with evaluations on 20 datasets has 700."""
_MAX_VALUES = 1 << 27
"""Values that are kept in memory, of 8 bytes each."""
_MAX_PROBLEMS = 20
"""Broken lines that are named."""
Curve = tuple[list[int], list[float]]
"""The steps and the values of one metric, without values that are not finite."""


class Curves:
    """The metrics of one run. A line of a step replaces an earlier one of the same step."""

    def __init__(self, path: Path) -> None:
        self._lines = GrowingLines(path)
        self._start_again()

    def _start_again(self) -> None:
        self.latest: dict[str, float] = {}
        """The newest value of each metric."""
        self._broken: list[str] = []
        self._hidden_names: set[str] = set()
        self._num_hidden_lines = 0
        self._row_of_step: dict[int, int] = {}
        self._columns: dict[str, array[float]] = {}
        self._same: list[list[str]] | None = None

    def refresh(self) -> None:
        """Reads the lines that are new; reads the file again from its start if it was replaced."""
        if self._lines.was_replaced():
            self._start_again()
        for _, line in self._lines.read_new():
            self._add(line)
            self._same = None

    @property
    def num_lines(self) -> int:
        """The number of lines that were read."""
        return self._lines.num_lines

    @property
    def problems(self) -> list[str]:
        """What of the file is not shown: broken lines, and metrics or steps beyond the limits."""
        name = self._lines.path.name
        problems = [self._lines.error] if self._lines.error else []
        if self._hidden_names:
            more = "at least " if len(self._hidden_names) == MAX_NAMES else ""
            problems.append(
                f"{name} has {more}{len(self._hidden_names)} metrics besides the {MAX_NAMES} that are shown"
            )
        if self._num_hidden_lines:
            problems.append(
                f"{name} has more than the {_MAX_VALUES} values that are shown: its last "
                f"{self._num_hidden_lines} lines are left out"
            )
        return problems + self._broken

    @property
    def names(self) -> list[str]:
        """The names of all metrics."""
        return sorted(self._columns)

    @property
    def same(self) -> list[list[str]]:
        """The groups of metrics that had the same values in every step, such as the only reward and the mean.

        Metrics that never changed are in no group: two that are always 0 may say different things.
        """
        if self._same is None:
            self._same = list(_equal_columns(self._columns))
        return self._same

    @property
    def last_step(self) -> int:
        """The last step with metrics; -1 if there is none."""
        return max(self._row_of_step, default=-1)

    def curve(self, name: str, first: float = -math.inf, last: float = math.inf) -> Curve:
        """Returns the values of a metric in the steps from `first` to `last`."""
        column = self._columns.get(name)
        if column is None:
            return [], []
        points = [
            (step, column[row])
            for step, row in sorted(self._row_of_step.items())
            if first <= step <= last and row < len(column) and not math.isnan(column[row])
        ]
        return [step for step, _ in points], [value for _, value in points]

    def ends(self, count: int) -> list[dict[str, float]]:
        """Returns the metrics of the first and of the last `count` steps, in order, each step once."""
        rows = [row for _, row in sorted(self._row_of_step.items())]
        chosen = rows if len(rows) <= 2 * count else rows[:count] + rows[-count:]
        columns = self._columns.items()
        return [
            {
                name: column[row]
                for name, column in columns
                if row < len(column) and not math.isnan(column[row])
            }
            for row in chosen
        ]

    def _add(self, line: bytes) -> None:
        metrics = parse_metrics(line)
        if metrics is None or not 0 <= metrics["step"] < STEP_LIMIT:
            if len(self._broken) < _MAX_PROBLEMS:
                self._broken.append(
                    f"{self._lines.path.name}:{self.num_lines} does not hold the metrics of a step"
                )
            return
        if (len(self._row_of_step) + 1) * len(self._columns) > _MAX_VALUES:
            self._num_hidden_lines += 1
            return
        step = metrics.pop("step")
        row = self._row_of_step.setdefault(step, len(self._row_of_step))
        for name, value in metrics.items():
            if name not in self._columns and len(self._columns) >= MAX_NAMES:
                if len(self._hidden_names) < MAX_NAMES:
                    self._hidden_names.add(name)
                continue
            column = self._columns.setdefault(name, array("d"))
            column.extend([math.nan] * (row + 1 - len(column)))
            column[row] = number = _as_float(value)
            if not math.isnan(number):
                self.latest[name] = number


def _equal_columns(columns: "Mapping[str, array[float]]") -> Iterator[list[str]]:
    """Yields the sorted names of columns that are equal and vary."""
    by_ends: dict[tuple[int, bytes], list[str]] = {}
    for name in sorted(columns):
        by_ends.setdefault((len(columns[name]), columns[name][-1:].tobytes()), []).append(name)
    for candidates in by_ends.values():
        by_values: dict[bytes, list[str]] = {}
        if len(candidates) > 1:
            for name in candidates:
                by_values.setdefault(columns[name].tobytes(), []).append(name)
        yield from (names for names in by_values.values() if len(names) > 1 and _varies(columns[names[0]]))


def _varies(column: "array[float]") -> bool:
    known = (value for value in column if not math.isnan(value))
    first = next(known, None)
    return any(value != first for value in known)


def _as_float(value: Any) -> float:
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def reduce(curve: Curve, most: int = MAX_POINTS) -> Curve:
    """Returns the lowest and the highest point of each of `most / 2` stretches of a curve that is longer."""
    steps, values = curve
    if len(steps) <= most:
        return curve
    bounds = [round(number * len(steps) / (most // 2)) for number in range(most // 2 + 1)]
    kept: set[int] = {0, len(steps) - 1}
    for begin, end in pairwise(bounds):
        kept |= _extremes(values, range(begin, end))
    order = sorted(kept)
    return [steps[index] for index in order], [values[index] for index in order]


def _extremes(values: Sequence[float], indices: Iterable[int]) -> set[int]:
    members = list(indices)
    if not members:
        return set()
    return {min(members, key=values.__getitem__), max(members, key=values.__getitem__)}
