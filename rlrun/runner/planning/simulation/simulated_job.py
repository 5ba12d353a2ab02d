"""Simulates a job as events, to find how long engines and trainer wait for each other.

Samples run on the engine with the fewest of them, at most `slots` at a time; an engine makes one token for
each of its running samples in `token_seconds(running)`. In synchronous mode a step trains on the first P
groups that finish (rlrun.runner.rollouts.synchronous); in asynchronous mode engines continue while the
trainer works (rlrun.runner.rollouts.asynchronous).
"""

import random
from dataclasses import dataclass
from math import log, sqrt

from rlrun.runner.planning.simulation.simulated_engines import (
    Lengths,
    SimulatedGeneration,
    SimulationSettings,
)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The averages of a simulation over its steps."""

    step_seconds: float
    """Mean time from one weight update to the next."""
    waiting_seconds: float
    """Mean time per step that the trainer waits for its batch; in synchronous mode, all of generation."""
    trainer_waits: float
    """Share of the time in which the trainer waits."""
    engines_idle: float
    """Share of the engines' slots that are empty, over time."""
    staleness: float
    """Mean number of versions between the start of a group and the training on it."""
    tokens: int
    """Number of response tokens trained on."""


@dataclass(slots=True)
class _Record:
    """The sums of a simulation so far."""

    waited: float = 0.0
    staleness: float = 0.0
    tokens: int = 0


def simulate(settings: SimulationSettings, steps: int) -> SimulationResult:
    """Simulates `steps` steps."""
    generation, record = SimulatedGeneration(settings), _Record()
    run = _run_asynchronous if settings.max_staleness else _run_synchronous
    run(settings, steps, generation, record)
    groups = steps * settings.prompts
    return SimulationResult(
        step_seconds=generation.now / steps,
        waiting_seconds=record.waited / steps,
        trainer_waits=record.waited / generation.now,
        engines_idle=1.0 - generation.busy() / (settings.engines * settings.slots * generation.now),
        staleness=record.staleness / groups,
        tokens=record.tokens,
    )


def _run_synchronous(
    settings: SimulationSettings, steps: int, generation: SimulatedGeneration, record: _Record
) -> None:
    group = 0
    for _ in range(steps):
        wait_start = generation.now
        for _ in range(settings.oversample):
            generation.submit(group)
            group += 1
        for _ in range(settings.prompts):
            finished = generation.next_finished()
            assert finished is not None
            record.tokens += _tokens(settings, finished)
        record.waited += generation.now - wait_start
        generation.stop()
        generation.next_finished(generation.now + settings.train_seconds + settings.sync_seconds)


def _run_asynchronous(
    settings: SimulationSettings, steps: int, generation: SimulatedGeneration, record: _Record
) -> None:
    """Keeps `max_staleness` batches in flight while the trainer works, and one more while it waits."""
    ready: list[tuple[int, int]] = []
    start_versions: dict[int, int] = {}

    def fill(capacity: int, version: int) -> None:
        while generation.in_flight + len(ready) < capacity:
            group = len(start_versions)
            start_versions[group] = version
            generation.submit(group)

    for version in range(steps):
        wait_start = generation.now
        fill((settings.max_staleness + 1) * settings.prompts, version)
        while len(ready) < settings.prompts:
            finished = generation.next_finished()
            assert finished is not None
            ready.append((start_versions[finished], finished))
        record.waited += generation.now - wait_start
        ready.sort()
        for start_version, group in ready[: settings.prompts]:
            record.staleness += version - start_version
            record.tokens += _tokens(settings, group)
        del ready[: settings.prompts]
        fill(settings.max_staleness * settings.prompts, version)
        training_end = generation.now + settings.train_seconds + settings.sync_seconds
        while (finished := generation.next_finished(training_end)) is not None:
            ready.append((start_versions[finished], finished))


def _tokens(settings: SimulationSettings, group: int) -> int:
    return sum(settings.lengths(group, number) for number in range(settings.samples_per_prompt))


def spread_lengths(mean: float, spread: float, longest: int, seed: int = 0) -> Lengths:
    """Returns a function that draws log-normal lengths, cut at `longest`.

    `spread` is the standard deviation divided by the mean.
    """
    sigma = sqrt(log(1 + spread**2))
    centre = log(mean) - sigma**2 / 2

    def length(group: int, number: int) -> int:
        drawn = random.Random((seed * 1_000_003 + group) * 4099 + number).lognormvariate(centre, sigma)
        return max(1, min(longest, round(drawn)))

    return length
