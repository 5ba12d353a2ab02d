"""Simulates engines that decode samples, as events at which a group is finished."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

Lengths = Callable[[int, int], int]
"""Returns the number of tokens that a sample will have, from the group's index and the sample's number."""


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The times, in seconds, and the batch sizes of a simulated job."""

    engines: int
    slots: int
    """Number of samples that one engine decodes at a time."""
    token_seconds: Callable[[int], float]
    """Returns the time in which an engine makes one token for each of the given number of samples."""
    prompt_seconds: float
    """Time of one prompt's prefill, during which the engine does not decode."""
    prompts: int
    """Prompts per step (P)."""
    samples_per_prompt: int
    """Samples per prompt that are trained on (n)."""
    responses_per_prompt: int
    """Responses per prompt that are generated."""
    oversample: int
    """Number of groups submitted at a time."""
    train_seconds: float
    sync_seconds: float
    lengths: Lengths
    max_staleness: int = 0
    """Number of versions that a group may be behind when it is trained on; 0 alternates generation and
    training.
    """
    update_interval: int = 1
    """Steps between two updates of the engines' weights."""


@dataclass(slots=True)
class _Engine:
    """One engine, whose running samples all advance at the same speed.

    `clock` therefore counts the tokens that each of them has received since the start, and a sample ends at a
    fixed value of `clock` whatever joins or leaves the batch.
    """

    clock: float = 0.0
    updated_at: float = 0.0
    """The simulated time at which `clock` was last brought up to date."""
    pause: float = 0.0
    """Seconds of prefill before decoding continues."""
    running: list[tuple[float, int, int]] = field(default_factory=list)
    """A heap of running samples: the clock at which the sample ends, its group, its number."""
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    load: int = 0
    """Number of samples, running or waiting."""


class SimulatedGeneration:
    """The generation of groups by all engines, in simulated time."""

    def __init__(self, settings: SimulationSettings) -> None:
        self._settings = settings
        self.now = 0.0
        self._engines = [_Engine() for _ in range(settings.engines)]
        self._events: list[tuple[float, int]] = []
        """A heap of the times at which an engine's next sample ends, with the engine's number."""
        self._unfinished: dict[int, int] = {}
        """Number of samples that each group still waits for."""
        self._busy = 0.0

    def submit(self, group: int) -> None:
        """Gives a group to the engine with the fewest samples."""
        number = min(range(len(self._engines)), key=lambda index: self._engines[index].load)
        engine = self._engines[number]
        count = self._settings.responses_per_prompt
        engine.waiting.extend((group, sample) for sample in range(count))
        engine.load += count
        self._unfinished[group] = count
        self._start_waiting(number)

    def next_finished(self, until: float = inf) -> int | None:
        """Lets time pass until a group is finished, and returns it; None if none is before `until`."""
        while self._events:
            when, number = self._events[0]
            engine = self._engines[number]
            if when != self._end(engine):
                heapq.heappop(self._events)  # outdated: the engine's batch has changed, and its speed with it
                continue
            if when > until:
                break
            heapq.heappop(self._events)
            self.now = when
            self._advance(engine)
            _, group, _ = heapq.heappop(engine.running)
            engine.load -= 1
            self._unfinished[group] -= 1
            self._start_waiting(number)
            if not self._unfinished[group]:
                del self._unfinished[group]
                return group
        assert until < inf, "no sample is running, so no group will ever finish"
        self.now = until
        return None

    @property
    def in_flight(self) -> int:
        """Number of groups that are not finished."""
        return len(self._unfinished)

    def busy(self) -> float:
        """Returns the seconds that slots have been in use so far, summed over all slots."""
        for engine in self._engines:
            self._advance(engine)
        return self._busy

    def stop(self) -> None:
        """Discards all unfinished groups."""
        for engine in self._engines:
            self._advance(engine)
            engine.running, engine.load = [], 0
            engine.waiting.clear()
        self._events, self._unfinished = [], {}

    def _start_waiting(self, number: int) -> None:
        """Starts waiting samples in an engine's free slots."""
        engine = self._engines[number]
        self._advance(engine)
        while engine.waiting and len(engine.running) < self._settings.slots:
            group, sample = engine.waiting.popleft()
            engine.pause += self._settings.prompt_seconds if sample == 0 else 0.0
            end = engine.clock + self._settings.lengths(group, sample)
            heapq.heappush(engine.running, (end, group, sample))
        if (end_of_next := self._end(engine)) is not None:
            heapq.heappush(self._events, (end_of_next, number))

    def _advance(self, engine: _Engine) -> None:
        """Brings an engine's clock to the present; prefill takes its time first."""
        passed = self.now - engine.updated_at
        prefill = min(engine.pause, passed)
        engine.pause -= prefill
        if engine.running:
            engine.clock += (passed - prefill) / self._settings.token_seconds(len(engine.running))
            self._busy += passed * len(engine.running)
        engine.updated_at = self.now

    def _end(self, engine: _Engine) -> float | None:
        """Returns when the engine's next sample ends; None if it has no running sample."""
        if not engine.running:
            return None
        tokens = max(engine.running[0][0] - engine.clock, 0.0)
        return engine.updated_at + engine.pause + tokens * self._settings.token_seconds(len(engine.running))
