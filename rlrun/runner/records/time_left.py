"""How long a job will take, from how long its recent steps took."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median, median_low

RECENT_STEPS = 20
"""How many steps back the estimate looks."""
_MIN_TREND_STEPS = 4
"""Fewer steps have no trend: the first one compiles, and a single slow one would look like a trend."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """How long one step took."""

    work: float
    """`perf/step_time`, which grows as responses do."""
    between: float = 0.0
    """The time until the next step, for evaluations and checkpoints, which most steps do not have."""


def seconds_left(recent: Sequence[StepSeconds], remaining: int) -> float | None:
    """Returns the seconds that `remaining` steps will take, given the last steps, oldest first.

    The recent trend continues for at most as many steps as it was seen in, and then the steps stay as long as
    they are. Medians keep single slow steps out of the trend. Returns None without a step to judge by.
    """
    if not recent:
        return None
    work = [step.work for step in recent]
    trend = _trend(work)
    present = median_low(seconds + trend * (len(work) - 1 - number) for number, seconds in enumerate(work))
    followed = min(remaining, len(work))
    ahead = [max(present + trend * steps, min(work)) for steps in range(1, followed + 1)]
    last = ahead[-1] if ahead else 0.0
    between = fmean(step.between for step in recent) * remaining
    return sum(ahead) + last * (remaining - followed) + between


def _trend(work: Sequence[float]) -> float:
    """Returns by how many seconds each step is longer than the one before it: the median of all pairs."""
    if len(work) < _MIN_TREND_STEPS:
        return 0.0
    pairs = combinations(enumerate(work), 2)
    return median((later - earlier) / (end - start) for (start, earlier), (end, later) in pairs)


class TimeLeft:
    """Estimates the time left of a job while it runs."""

    def __init__(self) -> None:
        self._recent: deque[StepSeconds] = deque(maxlen=RECENT_STEPS)
        self._last_end = time.monotonic()
        self._step = self._steps = 0

    def begin(self, step: int, steps: int) -> None:
        """Counts from now on, with `step` of `steps` done."""
        self._step, self._steps = step, steps
        self._last_end = time.monotonic()

    def go_back(self, step: int) -> None:
        """Counts from now on, after the job has gone back to `step`."""
        self.begin(step, self._steps)

    def add(self, step: int, step_time: float | None) -> float | None:
        """Takes a report of `step`, which has just ended, and returns the seconds that are left.

        `step_time` is the metric of that name; None, or a step that was reported before: no step has ended.
        """
        now = time.monotonic()
        elapsed, self._last_end = now - self._last_end, now
        if step > self._step and step_time is not None:
            self._recent.append(StepSeconds(step_time, max(elapsed - step_time, 0.0)))
        self._step = step
        return seconds_left(self._recent, max(self._steps - step, 0))
