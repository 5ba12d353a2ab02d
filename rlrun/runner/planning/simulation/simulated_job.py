"""A job as a simulation of events: engines that decode samples of different lengths, a trainer, who waits.

Samples run on the engine with the fewest of them, at most `slots` at a time; each engine makes one token for
every sample it runs in `token_seconds(running)`. In turns, a step trains on the first P groups that finish
(rlrun.runner.rollouts.synchronous); asynchronously, engines go on while the trainer works
(rlrun.runner.rollouts.asynchronous).
"""

import random
from dataclasses import dataclass
from math import log, sqrt

from rlrun.runner.planning.simulation.simulated_engines import Lengths, SimulatedGeneration, World


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a simulation has shown, over all its steps."""

    step_seconds: float
    """From one step's weights to the next's, on average."""
    waiting_seconds: float
    """Of a step, for its batch; in turns, that is all of its generation."""
    trainer_waits: float
    """Share of the time in which the trainer has nothing to do."""
    engines_idle: float
    """Share of the engines' slots that were empty, in all."""
    staleness: float
    """Weight versions between the first token of a group and its training, on average."""
    tokens: int
    """Response tokens trained on."""


@dataclass(slots=True)
class _Record:
    """What happened so far."""

    waited: float = 0.0
    ages: float = 0.0
    tokens: int = 0


def simulate(world: World, steps: int) -> SimulationResult:
    """Run `steps` steps."""
    generation, record = SimulatedGeneration(world), _Record()
    run = _asynchronously if world.max_staleness else _in_turns
    run(world, steps, generation, record)
    groups = steps * world.prompts
    return SimulationResult(
        step_seconds=generation.now / steps,
        waiting_seconds=record.waited / steps,
        trainer_waits=record.waited / generation.now,
        engines_idle=1.0 - generation.busy() / (world.engines * world.slots * generation.now),
        staleness=record.ages / groups,
        tokens=record.tokens,
    )


def _in_turns(world: World, steps: int, generation: SimulatedGeneration, record: _Record) -> None:
    group = 0
    for _ in range(steps):
        wanted_at = generation.now
        for _ in range(world.oversample):
            generation.submit(group)
            group += 1
        for _ in range(world.prompts):
            finished = generation.next_finished()
            assert finished is not None
            record.tokens += _tokens(world, finished)
        record.waited += generation.now - wanted_at
        generation.stop()
        generation.next_finished(generation.now + world.train_seconds + world.sync_seconds)


def _asynchronously(world: World, steps: int, generation: SimulatedGeneration, record: _Record) -> None:
    """Room for `max_staleness` batches while the trainer works, and for one more while it waits."""
    ready: list[tuple[int, int]] = []
    begun: dict[int, int] = {}

    def fill(room: int, version: int) -> None:
        while generation.in_flight + len(ready) < room:
            group = len(begun)
            begun[group] = version
            generation.submit(group)

    for version in range(steps):
        wanted_at = generation.now
        fill((world.max_staleness + 1) * world.prompts, version)
        while len(ready) < world.prompts:
            finished = generation.next_finished()
            assert finished is not None
            ready.append((begun[finished], finished))
        record.waited += generation.now - wanted_at
        ready.sort()
        for age, group in ready[: world.prompts]:
            record.ages += version - age
            record.tokens += _tokens(world, group)
        del ready[: world.prompts]
        fill(world.max_staleness * world.prompts, version)
        done = generation.now + world.train_seconds + world.sync_seconds
        while (finished := generation.next_finished(done)) is not None:
            ready.append((begun[finished], finished))


def _tokens(world: World, group: int) -> int:
    return sum(world.lengths(group, number) for number in range(world.samples_per_prompt))


def spread_lengths(mean: float, spread: float, longest: int, seed: int = 0) -> Lengths:
    """Log-normal lengths of that mean and that ratio of deviation to mean, cut at `longest`."""
    sigma = sqrt(log(1 + spread**2))
    centre = log(mean) - sigma**2 / 2

    def length(group: int, number: int) -> int:
        drawn = random.Random((seed * 1_000_003 + group) * 4099 + number).lognormvariate(centre, sigma)
        return max(1, min(longest, round(drawn)))

    return length
