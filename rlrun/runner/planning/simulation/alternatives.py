"""A case as a world to simulate, and the splits and modes worth comparing."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.runner.planning.simulation.simulated_engines import World
from rlrun.runner.planning.simulation.simulated_job import SimulationResult, simulate, spread_lengths
from rlrun.runner.planning.sizing import Sizing, running_samples
from rlrun.runner.planning.step_time import (
    Case,
    decode_seconds,
    prompt_seconds,
    step_training_seconds,
    sync_seconds,
)
from rlrun.runner.planning.sweep import Candidate, sweep

STEPS = 8
"""Steps that a simulation runs for."""
STALENESS = (0, 1, 2)
"""`rollout.max_staleness` where engines have their own GPUs; 0 is `mode = "sync"`."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A layout, and how its steps went."""

    candidate: Candidate
    max_staleness: int
    outcome: SimulationResult

    @property
    def device_hours(self) -> float | None:
        """Of the whole job."""
        spec, steps = self.candidate.case.spec, self.candidate.case.plan.steps
        devices = spec.cluster.nodes * spec.cluster.gpus_per_node
        return None if steps is None else self.outcome.step_seconds * steps * devices / 3600


def world_of(case: Case, sizing: Sizing, spread: float, max_staleness: int) -> World:
    """The case in numbers; responses are log-normal around the case's mean length."""
    rollout, batch = case.spec.rollout, case.plan.batch
    return World(
        engines=len(case.plan.engines),
        slots=running_samples(case, sizing.engine),
        token_seconds=lambda running: decode_seconds(case, running),
        prompt_seconds=prompt_seconds(case),
        prompts=batch.prompts,
        samples_per_prompt=batch.samples_per_prompt,
        oversample=rollout.oversample or batch.prompts,
        train_seconds=step_training_seconds(case),
        sync_seconds=sync_seconds(case),
        lengths=spread_lengths(case.load.response, spread, rollout.max_response_tokens, case.spec.seed),
        max_staleness=max_staleness,
    )


def compare_alternatives(case: Case, spread: float) -> Iterator[Alternative]:
    """The fastest layout that fits for each split of the GPUs, in each mode that the split allows."""
    seen = set()
    for candidate in sweep(case):
        split = len(candidate.case.plan.ranks), candidate.case.plan.colocated
        if split in seen or not candidate.fits or not candidate.case.plan.engines:
            continue
        seen.add(split)
        for staleness in STALENESS[:1] if candidate.case.plan.colocated else STALENESS:
            world = world_of(candidate.case, candidate.sizing, spread, staleness)
            yield Alternative(candidate, staleness, simulate(world, STEPS))
