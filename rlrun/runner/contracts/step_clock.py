"""Measures where the time of a step goes."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """The seconds of a step by part; time outside every part is overhead."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.parts: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time of the block to the part `name`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.parts[name] += time.perf_counter() - started

    def total(self) -> float:
        """Returns the seconds since the step began."""
        return time.perf_counter() - self._started
