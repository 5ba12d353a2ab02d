"""Measures where the time of a step goes."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


class Span(NamedTuple):
    """What one part of the job did from `start` to `end`, in seconds of `time.perf_counter` of the driver.

    Example: `Span("rank 0", "train", 12.5, 14.0)`
    """

    lane: str
    """`driver`, `rank 0`, `engine 0`, `rewards`."""
    name: str
    start: float
    end: float


class GroupMoment(NamedTuple):
    """When a lane last finished work for the group of a prompt, in seconds as those of a span.

    Example: `GroupMoment("engine 0", 17, 13.5)`
    """

    lane: str
    prompt: int
    """Index of the prompt in the run."""
    moment: float


class StepClock:
    """The seconds of a step by part; time outside every part is overhead."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.parts: defaultdict[str, float] = defaultdict(float)
        self.spans: list[Span] = []
        """Every part with its times, in the order of their ends."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time of the block to the part `name`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            self.parts[name] += ended - started
            self.spans.append(Span("driver", name, started, ended))

    def total(self) -> float:
        """Returns the seconds since the step began."""
        return time.perf_counter() - self.started


class BusyTimes:
    """The times in which an engine, or the reward processes, have work."""

    def __init__(self, lane: str, name: str) -> None:
        self._lane, self._name = lane, name
        self._running = 0
        self._started = 0.0
        self._ended: list[Span] = []
        self._moments: dict[int, float] = {}

    @contextmanager
    def working(self, prompts: Collection[int] = ()) -> Iterator[None]:
        """Counts the block as work for the groups of these prompts; blocks may overlap."""
        if not self._running:
            self._started = time.perf_counter()
        self._running += 1
        try:
            yield
            self._moments |= dict.fromkeys(prompts, time.perf_counter())
        finally:
            self._running -= 1
            if not self._running:
                self._add(time.perf_counter())

    def take(self) -> Sequence[Span]:
        """Returns the times since the last call; work that continues is cut in two here."""
        if self._running:
            now = time.perf_counter()
            self._add(now)
            self._started = now
        ended, self._ended = self._ended, []
        return ended

    def take_moments(self) -> Sequence[GroupMoment]:
        """Returns when the work for each group ended, for the groups of the time since the last call."""
        moments, self._moments = self._moments, {}
        return [GroupMoment(self._lane, prompt, moment) for prompt, moment in moments.items()]

    def _add(self, end: float) -> None:
        """Adds the time that ends here; a gap that is too short to be seen is left out."""
        last = self._ended[-1] if self._ended else None
        if last is not None and self._started - last.end < _MIN_GAP:
            self._ended[-1] = last._replace(end=end)
        else:
            self._ended.append(Span(self._lane, self._name, self._started, end))


ENGINE_WORK = "requests"
"""The name of the spans in which an engine has requests."""
CLOCK_MARK = "rlrun clock "
"""Begins the name of an event in a rank's trace, which ends in the time of its start in nanoseconds since
1970: the profiler's own clock is some milliseconds off."""
_MIN_GAP = 0.05
"""Seconds."""
