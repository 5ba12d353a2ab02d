"""Engines that decode, as events: when is the next group whole?"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

Lengths = Callable[[int, int], int]
"""Tokens that sample `number` of group `index` will have."""


@dataclass(frozen=True, slots=True)
class World:
    """What is simulated; seconds and samples."""

    engines: int
    slots: int
    """Samples that one engine decodes at a time."""
    token_seconds: Callable[[int], float]
    """Time of one token for each of that many samples."""
    prompt_seconds: float
    """Time an engine takes for one prompt, in which it decodes nothing."""
    prompts: int
    """P"""
    samples_per_prompt: int
    """n"""
    oversample: int
    """Groups submitted at a time."""
    train_seconds: float
    sync_seconds: float
    lengths: Lengths
    max_staleness: int = 0
    """Weight versions by which a group may be behind when it is trained on; 0: generation and training
    alternate."""


@dataclass(slots=True)
class _Engine:
    """One engine; `clock` counts the tokens that each of its samples has had."""

    clock: float = 0.0
    changed: float = 0.0
    """When `clock` was right."""
    pause: float = 0.0
    """Prompts still to be read before decoding goes on."""
    running: list[tuple[float, int, int]] = field(default_factory=list)
    """Heap: the clock at which a sample ends, its group, its number."""
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    load: int = 0


class SimulatedGeneration:
    """Engines at work."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.now = 0.0
        self._engines = [_Engine() for _ in range(world.engines)]
        self._events: list[tuple[float, int]] = []
        self._left: dict[int, int] = {}
        self._busy = 0.0

    def submit(self, group: int) -> None:
        """Give a group to the engine with the fewest samples."""
        number = min(range(len(self._engines)), key=lambda each: self._engines[each].load)
        engine = self._engines[number]
        count = self._world.samples_per_prompt
        engine.waiting.extend((group, sample) for sample in range(count))
        engine.load += count
        self._left[group] = count
        self._go_on(number)

    def next_finished(self, until: float = inf) -> int | None:
        """Let time pass until a group is whole, and say which; None, and it is `until`, where none is."""
        while self._events:
            when, number = self._events[0]
            engine = self._engines[number]
            if when != self._end(engine):
                heapq.heappop(self._events)  # something changed since
                continue
            if when > until:
                break
            heapq.heappop(self._events)
            self.now = when
            self._advance(engine)
            _, group, _ = heapq.heappop(engine.running)
            engine.load -= 1
            self._left[group] -= 1
            self._go_on(number)
            if not self._left[group]:
                del self._left[group]
                return group
        assert until < inf, "nothing runs, and nothing would ever finish"
        self.now = until
        return None

    @property
    def in_flight(self) -> int:
        """Groups that are not whole yet."""
        return len(self._left)

    def busy(self) -> float:
        """Seconds that slots were in use, so far."""
        for engine in self._engines:
            self._advance(engine)
        return self._busy

    def stop(self) -> None:
        """Forget what is running."""
        for engine in self._engines:
            self._advance(engine)
            engine.running, engine.load = [], 0
            engine.waiting.clear()
        self._events, self._left = [], {}

    def _go_on(self, number: int) -> None:
        engine = self._engines[number]
        self._advance(engine)
        while engine.waiting and len(engine.running) < self._world.slots:
            group, sample = engine.waiting.popleft()
            engine.pause += self._world.prompt_seconds if sample == 0 else 0.0
            end = engine.clock + self._world.lengths(group, sample)
            heapq.heappush(engine.running, (end, group, sample))
        if (end_of_next := self._end(engine)) is not None:
            heapq.heappush(self._events, (end_of_next, number))

    def _advance(self, engine: _Engine) -> None:
        passed = self.now - engine.changed
        read = min(engine.pause, passed)
        engine.pause -= read
        if engine.running:
            engine.clock += (passed - read) / self._world.token_seconds(len(engine.running))
            self._busy += passed * len(engine.running)
        engine.changed = self.now

    def _end(self, engine: _Engine) -> float | None:
        """When the engine's next sample ends; None where it runs none."""
        if not engine.running:
            return None
        tokens = max(engine.running[0][0] - engine.clock, 0.0)
        return engine.changed + engine.pause + tokens * self._world.token_seconds(len(engine.running))
