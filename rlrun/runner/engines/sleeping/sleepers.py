"""Samples that sleep instead of being decoded: they take their time, and no computation.

submit ──▶ waiting ──▶ running, at most `max_running` ──▶ done after length × token_seconds
                          └── abort, pause: with the tokens that the time so far was enough for
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from rlrun.runner.engines.native.engine.requests import Job
from rlrun.runner.engines.sleeping.setup import SleepingSetup

TOKEN = 7
"""What every response consists of."""


@dataclass(eq=False, slots=True)
class _Sleeper:
    """A running sample."""

    job: Job
    length: int
    begun: float
    """When it would have begun if it had never been paused."""
    timer: asyncio.TimerHandle | None = None


class Sleepers:
    """All samples of an engine; used in one event loop."""

    def __init__(self, setup: SleepingSetup) -> None:
        self._setup = setup
        self._sigma = sqrt(log(1 + setup.spread**2))
        self._centre = log(setup.mean_tokens) - self._sigma**2 / 2
        self._waiting: deque[Job] = deque()
        self._running: dict[Job, _Sleeper] = {}
        self._paused_at: float | None = None
        self.version = 0
        """Of the weights that it would have."""

    @property
    def busy(self) -> bool:
        """Whether samples run or wait."""
        return bool(self._running or self._waiting)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take samples in; each is told when it is done."""
        self._waiting.extend(jobs)
        self._fill()

    def abort(self, chosen: Callable[[Job], bool]) -> int:
        """End the chosen samples with what they have; how many those are."""
        waiting = [job for job in self._waiting if chosen(job)]
        running = [one for job, one in self._running.items() if chosen(job)]
        self._waiting = deque(job for job in self._waiting if not chosen(job))
        for job in waiting:
            self._end(job, 0, "abort")
        for one in running:
            self._leave(one, self._tokens(one), "abort")
        self._fill()
        return len(waiting) + len(running)

    def set_version(self, version: int) -> None:
        """From the next token on, by other weights."""
        self.version = version
        for one in self._running.values():
            one.job.starts.append((version, self._tokens(one)))

    def pause(self) -> None:
        """Nobody gets a token until `resume`."""
        if self._paused_at is None:
            self._paused_at = _now()
            for one in self._running.values():
                assert one.timer is not None
                one.timer.cancel()

    def resume(self) -> None:
        """Go on after a pause."""
        if self._paused_at is None:
            return
        stood, self._paused_at = _now() - self._paused_at, None
        for one in self._running.values():
            one.begun += stood
            self._wake_later(one)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._setup.max_running and self._paused_at is None:
            job = self._waiting.popleft()
            job.starts.append((self.version, 0))
            one = self._running[job] = _Sleeper(job, self._length(job), _now())
            self._wake_later(one)

    def _wake_later(self, one: _Sleeper) -> None:
        end = one.begun + one.length * self._setup.token_seconds
        finish = "length" if one.length == one.job.params.max_new_tokens else "stop"
        loop = asyncio.get_running_loop()
        one.timer = loop.call_at(end, self._wake, one, finish)

    def _wake(self, one: _Sleeper, finish: str) -> None:
        self._leave(one, one.length, finish)
        self._fill()

    def _leave(self, one: _Sleeper, tokens: int, finish: str) -> None:
        assert one.timer is not None
        one.timer.cancel()
        del self._running[one.job]
        self._end(one.job, tokens, finish)

    def _end(self, job: Job, tokens: int, finish: str) -> None:
        job.tokens = np.full(tokens, TOKEN, dtype=np.int32)
        job.log_probs = np.full(tokens, -1.0, dtype=np.float32)
        job.finish = {"type": finish}
        job.on_done(job)

    def _tokens(self, one: _Sleeper) -> int:
        until = _now() if self._paused_at is None else self._paused_at
        return min(one.length, int((until - one.begun) / self._setup.token_seconds))

    def _length(self, job: Job) -> int:
        """By the sample's seed alone."""
        drawn = random.Random(job.seed).lognormvariate(self._centre, self._sigma)
        least = max(1, job.params.min_new_tokens)
        return min(max(least, round(drawn)), job.params.max_new_tokens)


def _now() -> float:
    return asyncio.get_running_loop().time()
