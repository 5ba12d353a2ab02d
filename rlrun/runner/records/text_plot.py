"""Draws curves as lines of text, for a terminal or a log."""

from collections.abc import Mapping, Sequence

import numpy as np

Points = Sequence[tuple[int, float]]

_MARKS = "●+×○*"
LABEL_WIDTH = 9
"""Number of columns for the labels left of the axis."""


def plot_text(series: Mapping[str, Points], width: int = 72, height: int = 14) -> str:
    """Returns a plot of several curves, each with its own mark, with a legend below.

    Steps must ascend and values must be finite.
    """
    steps = [step for points in series.values() for step, _ in points]
    values = [value for points in series.values() for _, value in points]
    low, high = min(values), max(values)
    if high == low:
        low, high = low - 0.5, high + 0.5
    columns = np.linspace(min(steps), max(steps), width)
    cells = [[" "] * width for _ in range(height)]
    for points, mark in zip(series.values(), _marks(len(series)), strict=True):
        heights = np.interp(columns, [step for step, _ in points], [value for _, value in points])
        rows = np.rint((high - heights) / (high - low) * (height - 1)).astype(int)
        first, last = points[0][0], points[-1][0]
        for column, row in enumerate(rows):
            if first <= columns[column] <= last:
                cells[row][column] = mark
    lines = [
        f"{_label(row, height, low, high):>{LABEL_WIDTH}} │{''.join(line)}".rstrip()
        for row, line in enumerate(cells)
    ]
    lines.append(f"{'':>{LABEL_WIDTH}} └{'─' * width}")
    ends = f"{min(steps):<{width // 2}}{max(steps):>{width - width // 2}}"
    lines.append(f"{'step':>{LABEL_WIDTH}}  {ends}")
    lines += [
        f"{'':>{LABEL_WIDTH}}  {mark} {name}" for name, mark in zip(series, _marks(len(series)), strict=True)
    ]
    return "\n".join(lines)


def _marks(count: int) -> list[str]:
    return [_MARKS[number % len(_MARKS)] for number in range(count)]


def _label(row: int, height: int, low: float, high: float) -> str:
    """Returns the label of a row: the top, middle and bottom rows show their value."""
    if row not in (0, (height - 1) // 2, height - 1):
        return ""
    return f"{high - (high - low) * row / (height - 1):.3g}"
