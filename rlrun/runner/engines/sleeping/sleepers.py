"""Samples that sleep instead of being decoded: they take time, but no computation.

submit ──▶ waiting ──▶ running, at most `max_running` ──▶ done after length × token_seconds
                          └─ abort, pause ──▶ as many tokens as the time so far allows
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from rlrun.runner.engines.native.engine.requests import SampleInProgress
from rlrun.runner.engines.sleeping.setup import SleepingSetup

TOKEN = 7
"""The only token of every response."""


@dataclass(eq=False, slots=True)
class _Sleeper:
    """A running sample."""

    sample: SampleInProgress
    length: int
    start: float
    """The loop's time at which it started, moved later by every pause."""
    timer: asyncio.TimerHandle | None = None


class Sleepers:
    """All samples of an engine; used in one event loop."""

    def __init__(self, setup: SleepingSetup) -> None:
        self._setup = setup
        self._sigma = sqrt(log(1 + setup.spread**2))
        self._mu = log(setup.mean_tokens) - self._sigma**2 / 2
        self._waiting: deque[SampleInProgress] = deque()
        self._running: dict[SampleInProgress, _Sleeper] = {}
        self._paused_at: float | None = None
        self.version = 0
        """Version of the weights that the engine pretends to have."""

    @property
    def busy(self) -> bool:
        """Whether samples run or wait."""
        return bool(self._running or self._waiting)

    def submit(self, samples: Sequence[SampleInProgress]) -> None:
        """Accepts samples; calls `on_done` of each when it is done."""
        self._waiting.extend(samples)
        self._fill()

    def abort(self, is_chosen: Callable[[SampleInProgress], bool]) -> int:
        """Ends the samples for which `is_chosen` is true with their tokens so far; returns their number."""
        waiting = [sample for sample in self._waiting if is_chosen(sample)]
        running = [sleeper for sample, sleeper in self._running.items() if is_chosen(sample)]
        self._waiting = deque(sample for sample in self._waiting if not is_chosen(sample))
        for sample in waiting:
            self._end(sample, 0, "abort")
        for sleeper in running:
            self._stop(sleeper, self._tokens(sleeper), "abort")
        self._fill()
        return len(waiting) + len(running)

    def set_version(self, version: int) -> None:
        """Notes that tokens from the next one on come from other weights."""
        self.version = version
        for sleeper in self._running.values():
            sleeper.sample.starts.append((version, self._tokens(sleeper)))

    def pause(self) -> None:
        """Stops all samples until `resume`."""
        if self._paused_at is None:
            self._paused_at = _now()
            for sleeper in self._running.values():
                assert sleeper.timer is not None
                sleeper.timer.cancel()

    def resume(self) -> None:
        """Continues after a pause."""
        if self._paused_at is None:
            return
        pause, self._paused_at = _now() - self._paused_at, None
        for sleeper in self._running.values():
            sleeper.start += pause
            self._wake_later(sleeper)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._setup.max_running and self._paused_at is None:
            sample = self._waiting.popleft()
            sample.starts.append((self.version, 0))
            sleeper = self._running[sample] = _Sleeper(sample, self._length(sample), _now())
            self._wake_later(sleeper)

    def _wake_later(self, sleeper: _Sleeper) -> None:
        end = sleeper.start + sleeper.length * self._setup.token_seconds
        finish = "length" if sleeper.length == sleeper.sample.params.max_new_tokens else "stop"
        loop = asyncio.get_running_loop()
        sleeper.timer = loop.call_at(end, self._wake, sleeper, finish)

    def _wake(self, sleeper: _Sleeper, finish: str) -> None:
        self._stop(sleeper, sleeper.length, finish)
        self._fill()

    def _stop(self, sleeper: _Sleeper, tokens: int, finish: str) -> None:
        assert sleeper.timer is not None
        sleeper.timer.cancel()
        del self._running[sleeper.sample]
        self._end(sleeper.sample, tokens, finish)

    def _end(self, sample: SampleInProgress, tokens: int, finish: str) -> None:
        sample.tokens = np.full(tokens, TOKEN, dtype=np.int32)
        sample.log_probs = np.full(tokens, -1.0, dtype=np.float32)
        sample.finish = {"type": finish}
        sample.on_done(sample)

    def _tokens(self, sleeper: _Sleeper) -> int:
        until = _now() if self._paused_at is None else self._paused_at
        return min(sleeper.length, int((until - sleeper.start) / self._setup.token_seconds))

    def _length(self, sample: SampleInProgress) -> int:
        """Returns the sample's length, drawn from a log-normal distribution by its seed alone."""
        length = random.Random(sample.seed).lognormvariate(self._mu, self._sigma)
        return min(max(1, sample.params.min_new_tokens, round(length)), sample.params.max_new_tokens)


def _now() -> float:
    return asyncio.get_running_loop().time()
