"""Reads metrics.jsonl, which has one line per step, for a resume and for the learning curve, and sums it up.

A crash may cut the last line short, and a failing disk may break any line. Only the step of such a line is
lost: readers skip it, and a resume moves it to `superseded/`.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlrun.models.foreign_files import open_regular
from rlrun.models.json_files import parse_json
from rlrun.specs.paths import display_path

logger = logging.getLogger(__name__)
_REWARD, _LOSS, _STEP_TIME = "rollout/reward/mean", "train/loss", "perf/step_time"
_HELD_OUT = re.compile(r"eval/.+/(reward|pass@\d+)")


@dataclass(frozen=True, slots=True)
class MetricsLine:
    """One line of the file."""

    number: int
    """Line number, counted from 1."""
    raw: bytes
    """The line with its line break, if it has one."""
    metrics: dict[str, Any] | None
    """The metrics by name, with the `step`; None for a broken line."""

    @property
    def is_cut(self) -> bool:
        """Whether the line is broken because its writer was killed."""
        return self.metrics is None and not self.raw.endswith(b"\n")


def read_lines(path: Path) -> list[MetricsLine]:
    """Returns all lines of the file, the broken ones included; none if there is no file."""
    try:
        with open_regular(path) as file:
            raw_lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [MetricsLine(number, raw, parse_metrics(raw)) for number, raw in enumerate(raw_lines, start=1)]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the metrics of every step; warns of each broken line, naming it."""
    lines = read_lines(path)
    warn_of_broken(path, lines, "skipped")
    return [line.metrics for line in lines if line.metrics is not None]


def split_at_step(lines: Iterable[MetricsLine], step: int) -> tuple[list[MetricsLine], list[MetricsLine]]:
    """Returns the lines of steps up to `step`, and those of later steps together with broken lines."""
    kept: list[MetricsLine] = []
    removed: list[MetricsLine] = []
    for line in lines:
        (kept if line.metrics is not None and line.metrics["step"] <= step else removed).append(line)
    return kept, removed


def warn_of_broken(path: Path, lines: Sequence[MetricsLine], fate: str) -> None:
    """Warns of each broken line and what happens to it, except a last line that a crash cut short."""
    for line in lines:
        if line.metrics is None and not line.is_cut:
            message = "%s:%d does not hold the metrics of a step: %s"
            logger.warning(message, display_path(path), line.number, fate)


def parse_metrics(raw: bytes) -> dict[str, Any] | None:
    """Returns the metrics of a line; None if it holds anything else, or is cut short."""
    try:
        metrics = parse_json(raw)
    except ValueError:
        return None
    if not raw.endswith(b"\n") or not isinstance(metrics, dict) or type(metrics.get("step")) is not int:
        return None
    return metrics if all(_is_number(value) for value in metrics.values()) else None


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def results_of(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the results by name, from the lines of metrics.jsonl; empty for a run without any.

    The loss is only a result of jobs without rewards. The first step is left out of the time per step,
    because programs are still warming up.

    Example: `{"steps": 20, "perf/step_time.median": 4.2, "rollout/reward/mean.last": 0.96,
    "rollout/reward/mean.best": 0.97, "eval/held-out/reward.last": 0.995, "eval/held-out/reward.best": 0.995}`
    """
    if not lines:
        return {}
    results: dict[str, float] = {"steps": lines[-1]["step"]}
    times = _values(lines, _STEP_TIME)
    if times:
        results[f"{_STEP_TIME}.median"] = median(times[1:] or times)
    names = dict.fromkeys(name for line in lines for name in line)
    objective = _REWARD if _REWARD in names else _LOSS
    for name in (objective, *filter(_HELD_OUT.fullmatch, names)):
        if values := _values(lines, name):
            best = min if name == _LOSS else max
            results |= {f"{name}.last": values[-1], f"{name}.best": best(values)}
    return results


def _values(lines: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [line[name] for line in lines if line.get(name) is not None]
