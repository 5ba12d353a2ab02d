"""Where a step's time goes."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Seconds of a step by part; what no part claims is overhead."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.parts: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Book the time of the block to `name`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.parts[name] += time.perf_counter() - started

    def total(self) -> float:
        """Seconds since the step began."""
        return time.perf_counter() - self._started
