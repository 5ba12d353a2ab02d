"""Writes the learning curve at the end of a run, as text and as a picture with a panel for each quantity."""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.run_folder import RunFolder

MIN_PLOT = 20
"""Columns of the plot in the narrowest terminal."""
_COLUMNS = 2
_REWARDS = ("eval/*/reward", "rollout/reward/mean")
_LOSS = ("train/loss",)
_PANELS = {
    "response length (tokens)": ("eval/*/response_len/mean", "rollout/response_len/mean"),
    "entropy": ("train/entropy",),
    "KL": ("train/kl_loss", "train/approx_kl"),
    "gap between engine and trainer (log-probs)": ("train/train_rollout_logprob_abs_diff",),
    "throughput (tokens per second)": (
        "perf/tokens_per_second/generated",
        "perf/tokens_per_second/trained",
    ),
}
"""The metrics of each further panel; `*` stands for the name of a dataset."""
_MAX_DRAWN = 1e300
"""The difference of two values must be finite, too."""
Series = dict[str, list[tuple[int, float]]]
Points = Sequence[tuple[int, float]]
_MARKS = "●+×○*"
LABEL_WIDTH = 9
"""Number of columns for the labels left of the axis."""


def panels_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """Returns the curves of each panel that has any; the first is the reward, or the loss without rewards.

    `lines` are the metrics of each step.
    """
    rewards = _curves(lines, _REWARDS)
    panels = {"reward": rewards} if rewards else {"loss": _curves(lines, _LOSS)}
    panels |= {title: _changing(_curves(lines, patterns)) for title, patterns in _PANELS.items()}
    return {title: series for title, series in panels.items() if series}


def _curves(lines: Sequence[Mapping[str, Any]], patterns: Sequence[str]) -> Series:
    """Returns the finite values of the metrics that match a pattern, by step."""
    names = dict.fromkeys(name for line in lines for name in line)
    chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    curves = {
        name: [(line["step"], line[name]) for line in lines if _is_drawn(line.get(name))] for name in chosen
    }
    return {name: points for name, points in curves.items() if points}


def _changing(curves: Series) -> Series:
    """Returns the curves that are not 0 throughout, as the KL is with one optimizer step per step."""
    return {name: points for name, points in curves.items() if any(value for _, value in points)}


def _is_drawn(value: Any) -> bool:
    return value is not None and abs(value) < _MAX_DRAWN


def write_curve(folder: RunFolder, title: str, width: int) -> str:
    """Writes curve.png, and returns its first panel as text of at most `width` columns.

    An older file is set aside first. The text of a run with a single step is empty.
    """
    panels = panels_of(read_metrics(folder.metrics))
    if not panels:
        return ""
    folder.set_aside(folder.curve)
    draw_panels(panels, title, folder.curve)
    series = next(iter(panels.values()))
    if len({step for points in series.values() for step, _ in points}) < 2:
        return ""
    return plot_text(series, max(width - LABEL_WIDTH - 2, MIN_PLOT))


def draw_panels(panels: Mapping[str, Series], title: str, path: Path) -> None:
    """Writes the panels as a PNG, two in a row."""
    from matplotlib.figure import Figure

    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(8 if columns == 1 else 11, 4.5 if rows == 1 else 3 * rows), dpi=120)
    figure.set_layout_engine("constrained")
    figure.suptitle(title)
    for number, (name, series) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        for metric, points in series.items():
            held_out = metric.startswith("eval/")
            style = (
                {"linewidth": 2, "marker": "o", "markersize": 4}
                if held_out
                else {"linewidth": 1, "alpha": 0.7}
            )
            axes.plot(*zip(*points, strict=True), label=metric, **style)
        axes.set(title=name, xlabel="step")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path)


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
