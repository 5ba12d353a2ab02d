"""Simulates the best layout of each split of the GPUs, in each rollout mode, to compare them."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.runner.planning.simulation.simulated_engines import SimulationSettings
from rlrun.runner.planning.simulation.simulated_job import SimulationResult, simulate, spread_lengths
from rlrun.runner.planning.sizing import Sizing, running_samples
from rlrun.runner.planning.step_time import (
    PlannedJob,
    decode_seconds,
    prompt_seconds,
    step_training_seconds,
)
from rlrun.runner.planning.sweep import Candidate, sweep
from rlrun.runner.planning.sync_time import sync_time

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
        devices = spec.cluster.nodes * spec.cluster.gpus_per_node
        return None if steps is None else self.outcome.step_seconds * steps * devices / 3600


def simulation_settings(
    job: PlannedJob, sizing: Sizing, spread: float, max_staleness: int
) -> SimulationSettings:
    """Returns the settings that simulate a job; response lengths are log-normal around their mean."""
    rollout, batch = job.spec.rollout, job.plan.batch
    return SimulationSettings(
        engines=len(job.plan.engines),
        slots=running_samples(job, sizing.engine),
        token_seconds=lambda running: decode_seconds(job, running),
        prompt_seconds=prompt_seconds(job),
        prompts=batch.prompts,
        samples_per_prompt=batch.samples_per_prompt,
        oversample=rollout.oversample,
        train_seconds=step_training_seconds(job),
        sync_seconds=sync_time(job).seconds,
        lengths=spread_lengths(job.load.response, spread, rollout.max_response_tokens, job.spec.seed),
        max_staleness=max_staleness,
    )


def compare_alternatives(job: PlannedJob, spread: float) -> Iterator[Alternative]:
    """Yields the fastest layout that fits for each split of the GPUs, in each mode that the split allows."""
    simulated_splits = set()
    for candidate in sweep(job):
        split = len(candidate.job.plan.ranks), candidate.job.plan.colocated
        if split in simulated_splits or not candidate.fits or not candidate.job.plan.engines:
            continue
        simulated_splits.add(split)
        for staleness in STALENESS[:1] if candidate.job.plan.colocated else STALENESS:
            settings = simulation_settings(candidate.job, candidate.sizing, spread, staleness)
            yield Alternative(candidate, staleness, simulate(settings, STEPS))
