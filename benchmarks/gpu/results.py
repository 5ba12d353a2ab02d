"""What a check reports: one JSON line per case, with its figures and the goals that it missed.

Example of a line:

    {"check": "parity", "case": "dense float32", "status": "passed", "device": "NVIDIA H100 80GB HBM3",
     "seconds": 7.1, "figures": {"max_difference": 2.1e-05, "goals": ["max_difference <= 0.0001"]}}
"""

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "error", "timeout", "skipped"]
"""`failed`: a goal was missed; `error`: the case raised or its process died."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}


class Skipped(Exception):
    """The host lacks what a case needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that has to hold: `Goal("mfu", ">=", 0.4)`."""

    figure: str
    sign: Literal["<=", ">=", "=="]
    value: object

    def holds(self, figures: Mapping[str, object]) -> bool:
        """Returns whether the figure reaches the goal. NaN reaches none."""
        return _COMPARISONS[self.sign](figures[self.figure], self.value)

    def __str__(self) -> str:
        return f"{self.figure} {self.sign} {self.value}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one case measured, and what is expected of it."""

    figures: Mapping[str, object]
    goals: tuple[Goal, ...] = ()


Case = Callable[[], Measurement]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report."""

    check: str
    case: str
    status: Status
    device: str = ""
    seconds: float = 0.0
    figures: Mapping[str, object] = field(default_factory=dict)
    error: str = ""

    def line(self) -> str:
        """Returns the result as one line of JSON, without empty fields."""
        return json.dumps({name: value for name, value in asdict(self).items() if value}, default=str)


def judge(measurement: Measurement) -> tuple[Status, str]:
    """Returns the status of a measurement, and the goals that it missed."""
    missed = [str(goal) for goal in measurement.goals if not goal.holds(measurement.figures)]
    return ("failed", "missed: " + ", ".join(missed)) if missed else ("passed", "")


def described(measurement: Measurement) -> dict[str, object]:
    """Returns the figures, rounded to four digits, with the goals that they were held against."""
    goals = {"goals": [str(goal) for goal in measurement.goals]} if measurement.goals else {}
    return {name: _rounded(value) for name, value in measurement.figures.items()} | goals


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
