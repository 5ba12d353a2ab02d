"""Limits how many executions of a rollout run at once, of training and evaluations together.

    execution ──▶ slot ──▶ turns ──▶ engines ──▶ Pressure on their caches ──▶ limit ──▶ next executions

An engine whose cache is full retracts samples, which it computes again, or lets them wait; and it forgets the
earlier turns of executions. With fewer executions at once, more of what it computes is used.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rlrun.plugins.generation import Generation

FULL_CACHE = 0.05
"""Retractions per answer of an engine from which its KV cache is full."""
LONG_QUEUE = 0.1
"""The share of samples at engines that wait for room in a KV cache from which it is full."""
MIN_ANSWERS = 32
"""Answers after which the limit is adapted, or as many as executions run if these are more."""


@dataclass(slots=True)
class Pressure:
    """What engines showed of their caches since the limit was adapted last."""

    answers: int = 0
    retractions: int = 0
    """How often these answers were dropped from a cache, and computed again."""
    present: int = 0
    """Samples that ran or waited, whenever the engines were asked."""
    waiting: int = 0
    """Those that waited for room in a cache."""

    @property
    def is_full(self) -> bool:
        """Whether the caches are too small for what runs."""
        return self.retractions > FULL_CACHE * self.answers or self.waiting > LONG_QUEUE * self.present


def adapted_limit(limit: int, running: int, pressure: Pressure, highest: int) -> int:
    """Returns how many executions may run at once, after `running` of them put this pressure on the caches.

    Full caches take away a quarter of those that run. Without any sign of it the limit grows by a sixteenth,
    up to `highest`, while it is what holds executions back.
    """
    if pressure.is_full:
        return max(1, min(limit, running) * 3 // 4)
    if pressure.retractions or pressure.waiting or running < limit:
        return limit
    return min(highest, limit + max(1, limit // 16))


class ExecutionLimit:
    """The executions that may run at once."""

    def __init__(self, number: int | None = None) -> None:
        """`number`: the highest limit; None for none."""
        self._number = number
        self._highest = sys.maxsize if number is None else number
        self._limit = self._highest
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pressure = Pressure()
        self._lowest: int | None = None
        """The lowest limit since the last `take`; None if it was not adapted."""

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for room, which an execution takes during the block; those that came first go first."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(admitted)
        self._admit()
        try:
            await admitted
            yield
        finally:
            if admitted.done() and not admitted.cancelled():
                self._running -= 1
                self._admit()

    def groups(self, prompts: int, samples: int) -> int:
        """Returns how many of `prompts` prompts with `samples` executions each run at once, at least one."""
        return prompts if self._number is None else max(1, self._number // samples)

    def count(self, generations: Sequence[Generation]) -> None:
        """Counts the answers to an execution that runs, and adapts the limit after enough of them."""
        if not self._running:
            return
        pressure = self._pressure
        pressure.answers += len(generations)
        pressure.retractions += sum(generation.retractions for generation in generations)
        if pressure.answers < max(MIN_ANSWERS, self._running):
            return
        self._limit = adapted_limit(self._limit, self._running, pressure, self._highest)
        self._pressure = Pressure()
        if self._limit < self._highest:
            self._lowest = min(self._limit, self._lowest or self._limit)
        self._admit()

    def count_waiting(self, present: int, waiting: int) -> None:
        """Counts the samples at an engine, and those that wait for room in its cache."""
        if self._running:
            self._pressure.present += present
            self._pressure.waiting += waiting

    def take(self) -> dict[str, float]:
        """Returns the metric `execution_limit`, the lowest limit since the last call, if caches were full."""
        lowest, self._lowest = self._lowest, None
        return {} if lowest is None else {"execution_limit": lowest}

    def _admit(self) -> None:
        while self._waiting and self._running < self._limit:
            admitted = self._waiting.popleft()
            if not admitted.cancelled():
                admitted.set_result(None)
                self._running += 1
