"""Simulates the best layout of each split of the GPUs, in each rollout mode, to compare them.

A job is simulated as events, to find how long engines and trainer wait for each other. Samples run on the
engine with the fewest of them, at most `slots` at a time; an engine makes one token for each of its running
samples in `token_seconds(running)`. In synchronous mode a step trains on the first P groups that finish
(rlrun.runner.rollouts.synchronous); in asynchronous mode engines continue while the trainer works
(rlrun.runner.rollouts.asynchronous).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import log, sqrt

from rlrun.runner.planning.simulated_engines import (
    Lengths,
    SimulatedGeneration,
    SimulationSettings,
)
from rlrun.runner.planning.sizing import Sizing, running_samples
from rlrun.runner.planning.step_time import (
    PlannedJob,
    decode_seconds,
    prompt_seconds,
    step_training_seconds,
)
from rlrun.runner.planning.sweep import Candidate, sweep
from rlrun.runner.planning.sync_time import sync_time


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


STEPS = 8
"""Number of steps that a simulation runs."""
STALENESS = (0, 1, 2)
"""The values of `rollout.max_staleness` to try if engines have their own GPUs; 0 is `mode = "sync"`."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A layout and the result of its simulation."""

    candidate: Candidate
    max_staleness: int
    outcome: SimulationResult

    @property
    def device_hours(self) -> float | None:
        """GPU-hours of the whole job; None if the number of steps is not known."""
        spec, steps = self.candidate.job.spec, self.candidate.job.plan.steps
        devices = spec.cluster.gpus
        return None if steps is None else self.outcome.step_seconds * steps * devices / 3600


def simulation_settings(
    job: PlannedJob, sizing: Sizing, spread: float, max_staleness: int
) -> SimulationSettings:
    """Returns the settings that simulate a job; response lengths are log-normal around their mean."""
    rollout, batch = job.spec.rollout, job.plan.batch
    return SimulationSettings(
        engines=len(job.plan.generating_engines),
        slots=running_samples(job, sizing.engine),
        token_seconds=lambda running: decode_seconds(job, running),
        prompt_seconds=prompt_seconds(job),
        prompts=batch.prompts,
        samples_per_prompt=batch.samples_per_prompt,
        responses_per_prompt=job.plan.responses_per_prompt,
        oversample=rollout.oversample,
        train_seconds=step_training_seconds(job),
        sync_seconds=sync_time(job).seconds / rollout.weight_update_interval,
        lengths=spread_lengths(job.load.response, spread, rollout.max_response_tokens, job.spec.seed),
        max_staleness=max_staleness,
        update_interval=rollout.weight_update_interval,
    )


def compare_alternatives(job: PlannedJob, spread: float) -> Iterator[Alternative]:
    """Yields the fastest layout that fits for each split of the GPUs, in each mode that the split allows."""
    simulated_splits = set()
    for candidate in sweep(job):
        split = len(candidate.job.plan.ranks), candidate.job.plan.colocated
        if split in simulated_splits or not candidate.fits or not candidate.job.plan.engines:
            continue
        simulated_splits.add(split)
        shortest = job.spec.rollout.weight_update_interval
        for staleness in STALENESS[:1] if candidate.job.plan.colocated else STALENESS:
            if 0 < staleness < shortest:
                continue
            settings = simulation_settings(candidate.job, candidate.sizing, spread, staleness)
            yield Alternative(candidate, staleness, simulate(settings, STEPS))


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
    """Keeps batches in flight while the trainer works, and one more while it waits, as
    rlrun.runner.rollouts.asynchronous does.
    """
    interval = settings.update_interval
    ahead = settings.max_staleness - (interval - 1)
    ready: list[tuple[int, int]] = []
    start_versions: dict[int, int] = {}

    def fill(capacity: int, version: int) -> None:
        while generation.in_flight + len(ready) < capacity:
            group = len(start_versions)
            start_versions[group] = version // interval * interval
            generation.submit(group)

    for version in range(steps):
        wait_start = generation.now
        fill((ahead + 1) * settings.prompts, version)
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
        fill(ahead * settings.prompts, version)
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
