"""The timelines of steps: when the driver, the ranks, the engines and the rewards worked."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.models.foreign_files import open_regular
from rlrun.models.json_files import parse_json
from rlrun.runner.records.growing_lines import GrowingLines
from rlrun.runner.view.summary import number
from rlrun.specs.step_names import STEP_LIMIT

_MAX_SPANS = 5000


class Timelines:
    """The steps of timeline.jsonl; of several lines of one step, the last counts."""

    def __init__(self, path: Path) -> None:
        self._lines = GrowingLines(path)
        self._place: dict[int, tuple[int, int]] = {}
        """Offset and length of each step's line."""

    def refresh(self) -> None:
        """Finds the lines that are new."""
        if self._lines.was_replaced():
            self._place.clear()
        for offset, line in self._lines.read_new():
            step = _step_at(line)
            if step is not None:
                self._place[step] = (offset, len(line))

    @property
    def steps(self) -> list[int]:
        """The steps that have a timeline."""
        return sorted(self._place)

    def spans(self, step: int) -> list[list[Any]] | None:
        """Returns `[lane, name, start, end]` in seconds from the step's start; None without a timeline."""
        if step not in self._place:
            return None
        offset, length = self._place[step]
        with open_regular(self._lines.path) as file:
            file.seek(offset)
            line = parse_json(file.read(length))
        return valid_spans(line)


def spans_of_metrics(metrics: Mapping[str, float]) -> list[list[Any]]:
    """Returns the driver's parts of a step one after another, for runs that have no timeline."""
    order = ("rollout", "sleep", "log_prob", "reference", "teacher", "values", "train", "weight_sync", "eval")
    spans: list[list[Any]] = []
    start = 0.0
    for name in order:
        seconds = metrics.get(f"perf/{name}_time", 0.0)
        if seconds > 0:
            spans.append(["driver", name, start, start + seconds])
            start += seconds
    return spans


def valid_spans(line: Any) -> list[list[Any]]:
    """Returns the spans of a line that are well-formed."""
    spans = line.get("spans") if isinstance(line, dict) else None
    valid = []
    for span in spans if isinstance(spans, list) else []:
        if not (isinstance(span, list) and len(span) == 4):
            continue
        start, end = number(span[2]), number(span[3])
        if start is not None and end is not None and end >= start and math.isfinite(end - start):
            valid.append([str(span[0])[:80], str(span[1])[:80], start, end])
    return valid[:_MAX_SPANS]


def _step_at(line: bytes) -> int | None:
    try:
        step = parse_json(line)["step"]
    except (ValueError, TypeError, KeyError):
        return None
    return step if type(step) is int and 0 <= step < STEP_LIMIT else None
