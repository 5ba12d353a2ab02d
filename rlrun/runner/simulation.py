"""A job as a simulation of events: engines that decode samples of different lengths, a trainer, who waits.

Samples run on the engine with the fewest of them, at most `slots` at a time; each engine makes one token for
every sample it runs in `token_seconds(running)`. A step trains on the first P groups that finish, as the loop
does; with `ahead` steps of staleness allowed, generation goes on while the trainer works.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import log, sqrt

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
    ahead: int = 0
    """Steps by which generation may be ahead of training; 0 alternates."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation has shown, over all its steps."""

    step_seconds: float
    """From one step's weights to the next's, on average."""
    generation_seconds: float
    """Of a step's batch, from its first request to its last answer."""
    trainer_waits: float
    """Share of the time in which the trainer has nothing to do."""
    engines_idle: float
    """Share of the engines' slots that were empty, in all."""
    staleness: float
    """Mean age of a batch's weights when it is trained on, in steps."""
    tokens: int
    """Response tokens trained on."""


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


class _Generation:
    """Engines at work."""

    def __init__(self, world: World, start: float) -> None:
        self._world = world
        self.now = start
        self._engines = [_Engine(changed=start) for _ in range(world.engines)]
        self._events: list[tuple[float, int]] = []
        self._left: dict[int, int] = {}
        self.busy = 0.0

    def submit(self, group: int) -> None:
        """Give a group to the engine with the fewest samples."""
        number = min(range(len(self._engines)), key=lambda each: self._engines[each].load)
        engine = self._engines[number]
        count = self._world.samples_per_prompt
        engine.waiting.extend((group, sample) for sample in range(count))
        engine.load += count
        self._left[group] = count
        self._go_on(number)

    def next_finished(self) -> int:
        """Let time pass until a group is whole; which."""
        while True:
            when, number = heapq.heappop(self._events)
            engine = self._engines[number]
            if when != self._end(engine):
                continue  # something changed since
            self.now = when
            self._advance(engine)
            _, group, _ = heapq.heappop(engine.running)
            engine.load -= 1
            self._left[group] -= 1
            self._go_on(number)
            if not self._left[group]:
                del self._left[group]
                return group

    def stop(self) -> None:
        """Forget what is running."""
        for engine in self._engines:
            self._advance(engine)
            engine.running, engine.load = [], 0
            engine.waiting.clear()
        self._events, self._left = [], {}

    def wait_until(self, when: float) -> None:
        """Nothing runs until then."""
        self.now = max(self.now, when)

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
            self.busy += passed * len(engine.running)
        engine.changed = self.now

    def _end(self, engine: _Engine) -> float | None:
        """When the engine's next sample ends; None where it runs none."""
        if not engine.running:
            return None
        tokens = max(engine.running[0][0] - engine.clock, 0.0)
        return engine.changed + engine.pause + tokens * self._world.token_seconds(len(engine.running))


def simulate(world: World, steps: int) -> Outcome:
    """Run `steps` steps."""
    generation = _Generation(world, 0.0)
    group = 0
    trained: list[float] = []
    waited = taken = ages = 0.0
    tokens = 0
    for step in range(steps):
        if step > world.ahead:
            generation.wait_until(trained[step - world.ahead - 1])
        started = generation.now
        for _ in range(world.oversample):
            generation.submit(group)
            group += 1
        for _ in range(world.prompts):
            finished = generation.next_finished()
            tokens += sum(world.lengths(finished, each) for each in range(world.samples_per_prompt))
        generation.stop()
        taken += generation.now - started
        before = trained[-1] if trained else 0.0
        begin = max(generation.now, before)
        waited += begin - before
        ages += sum(started < done <= begin for done in trained)
        trained.append(begin + world.train_seconds + world.sync_seconds)
    slots = world.engines * world.slots * trained[-1]
    return Outcome(
        step_seconds=trained[-1] / steps,
        generation_seconds=taken / steps,
        trainer_waits=waited / trained[-1],
        engines_idle=1.0 - generation.busy / slots,
        staleness=ages / steps,
        tokens=tokens,
    )


def spread_lengths(mean: float, spread: float, longest: int, seed: int = 0) -> Lengths:
    """Log-normal lengths of that mean and that ratio of deviation to mean, cut at `longest`."""
    sigma = sqrt(log(1 + spread**2))
    centre = log(mean) - sigma**2 / 2

    def length(group: int, number: int) -> int:
        drawn = random.Random((seed * 1_000_003 + group) * 4099 + number).lognormvariate(centre, sigma)
        return max(1, min(longest, round(drawn)))

    return length
