"""The simulator behind `rlrun plan --simulate` against the real loop, with engines and a trainer that sleep.

    python -m benchmarks.simulator [--steps 5] [--rounds 3]

The loop, its rollouts and the routing over engines are those of a job; an engine sleeps for one token at a
time, longer where it runs more samples, and a trainer sleeps for a step. Both see the same response lengths.
One JSON object; quote `error`, the simulated step time relative to the real one, the median of the rounds.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.plugins.rollouts.single_turn import SingleTurn, SingleTurnParams
from rlrun.plugins.types import Sample, VersionSpan
from rlrun.runner.batches.model_handle import ModelHandle
from rlrun.runner.batches.packing import plan_steps
from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Role
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.contracts.step_clock import BusyTimes, Span
from rlrun.runner.engines.client.rooms import REGULAR
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.job.job import Job, ProcessRecords, Progress
from rlrun.runner.job.loop import run
from rlrun.runner.planning.simulated_engines import SimulationSettings
from rlrun.runner.planning.simulation import simulate, spread_lengths
from rlrun.runner.rollouts.asynchronous import AsynchronousSource
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.synchronous import SynchronousSource
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Decoder, Grader, Journal, Prompts, Relative, Trainer


@dataclass(frozen=True)
class Rate:
    """Seconds of one token: at least `least`, and more for every sample."""

    least: float
    each: float

    def __call__(self, running: int) -> float:
        return self.least + self.each * running


LENGTHS = spread_lengths(60, 0.6, 300)
BASE = SimulationSettings(
    engines=2,
    slots=16,
    token_seconds=Rate(0.004, 0.0),
    prompt_seconds=0.0,
    prompts=8,
    samples_per_prompt=4,
    responses_per_prompt=4,
    oversample=8,
    train_seconds=0.15,
    sync_seconds=0.02,
    lengths=LENGTHS,
)
WORLDS = {
    "all samples run at once": BASE,
    "samples wait for a slot, more groups than needed": replace(BASE, slots=6, oversample=12),
    "four engines, slower when full, a slow trainer": replace(
        BASE, engines=4, prompts=16, oversample=16, token_seconds=Rate(0.003, 0.0002), train_seconds=0.6
    ),
    "asynchronously, at most one version behind": replace(BASE, train_seconds=0.6, max_staleness=1),
}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name, world in WORLDS.items():
        real = [asyncio.run(real_step_seconds(world, options.steps)) for _ in range(options.rounds)]
        begun = time.process_time()
        simulated = simulate(world, options.steps).step_seconds
        results[name] = {
            "real_step_seconds": round(statistics.median(real), 4),
            "simulated_step_seconds": round(simulated, 4),
            "error": round(simulated / statistics.median(real) - 1, 4),
            "simulation_cpu_seconds": round(time.process_time() - begun, 4),
        }
    print(json.dumps(results, indent=2))


async def real_step_seconds(world: SimulationSettings, steps: int) -> float:
    """Mean time of a step of the real loop."""
    begun = time.perf_counter()
    await run_real(world, steps)
    taken = time.perf_counter() - begun - world.sync_seconds  # the weights of the start
    return taken / steps


async def run_real(
    world: SimulationSettings, steps: int, grader: "SleepingGrader | None" = None
) -> list[dict[str, float]]:
    """The metrics of each step of the real loop; `grader`: one that takes its time."""
    engines = EnginePool([SleepingEngine(world) for _ in range(world.engines)])  # type: ignore[list-item]
    grader = grader or SleepingGrader(0.0)
    policy = RolloutContext(
        engines,
        Decoder(),
        grader,
        seed=7,
        rollout=SingleTurn(SingleTurnParams()),
        deterministic=False,
    )
    spec = resolved_rollout(
        batch_size=world.prompts,
        samples_per_prompt=world.samples_per_prompt,
        oversample=world.oversample,
        max_staleness=world.max_staleness or 1,
    )
    trainer = SleepingTrainer(world)
    make = AsynchronousSource if world.max_staleness else SynchronousSource
    source = make(spec, policy, Prompts().ahead(world.oversample), Filters([]))
    journal = Journal()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            steps=steps,
            source=source,
            algorithm=Relative(),
            policy=ModelHandle(trainer, "policy", _pack, [0]),
            trainer=trainer,
            journal=journal,
            checkpoints=Checkpoints(Path(folder), keep=1),
            engines=engines,
            processes=BusyLanes([grader.busy, *(slot.busy for slot in engines.slots)]),
        )
        await run(job, Progress())
        await source.close()
    return [metrics for _, metrics in journal.lines]


class BusyLanes(ProcessRecords):
    """When each engine and the rewards worked."""

    def __init__(self, lanes: Sequence[BusyTimes]) -> None:
        self._lanes = lanes

    def take_spans(self) -> list[Span]:
        """Returns the spans of all lanes."""
        return [span for lane in self._lanes for span in lane.take()]


def _pack(sequences: Sequence[Any]) -> Any:
    return plan_steps(
        sequences,
        optimizer_steps=1,
        reduction="per_sample_mean",
        max_batch_tokens=4096,
        max_length=4096,
        max_response_tokens=300,
        data_degree=1,
    )


class SleepingGrader(Grader):
    """Scores one group at a time, and takes its time for each."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.busy = BusyTimes("rewards", "scoring")
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def score(self, samples: Sequence[Sample]) -> None:
        with self.busy.working():
            async with self._turn:
                await asyncio.sleep(self._seconds)
            await super().score(samples)


class SleepingTrainer(Trainer):
    """A step takes its time."""

    def __init__(self, world: SimulationSettings) -> None:
        super().__init__()
        self._world = world

    async def train(
        self, role: Role, sequences: Sequence[Any], steps: Sequence[Any], *, data_ranks: Sequence[int]
    ) -> list[dict[str, float]]:
        await asyncio.sleep(self._world.train_seconds)
        return await super().train(role, sequences, steps, data_ranks=data_ranks)

    async def write_weights(self, version: int) -> WeightManifest:
        await asyncio.sleep(self._world.sync_seconds)
        return await super().write_weights(version)


class SleepingEngine:
    """Decodes a token at a time for at most `slots` samples."""

    url = "asleep"
    serving = REGULAR

    def __init__(self, world: SimulationSettings) -> None:
        self._world = world
        self._slots = asyncio.Semaphore(world.slots)
        self._left: dict[asyncio.Future[None], int] = {}
        self._decoding: asyncio.Task[None] | None = None
        self._aborts = 0
        self._version = 0

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """All samples of all requests."""
        return [await self._group(request) for request in requests]

    async def abort_all(self) -> None:
        """End every sample, those that wait for a slot too."""
        self._aborts += 1
        for future in self._left:
            if not future.done():
                future.cancel()
        self._left.clear()

    async def update_weights(self, manifest: WeightManifest) -> int:
        """Changes the number of the version only."""
        self._version = manifest.version
        return manifest.version

    async def _group(self, request: GenerateRequest) -> list[Generation]:
        index = int(request.tokens[0])
        lengths = [self._world.lengths(index, number) for number in range(len(request.seeds))]
        return list(await asyncio.gather(*map(self._sample, lengths)))

    async def _sample(self, length: int) -> Generation:
        finish, aborts = "stop", self._aborts
        async with self._slots:
            if aborts != self._aborts:
                return _generation(0, "abort", self._version)
            version = self._version
            done = asyncio.get_running_loop().create_future()
            self._left[done] = length
            if self._decoding is None or self._decoding.done():
                self._decoding = asyncio.create_task(self._decode())
            try:
                await done
            except asyncio.CancelledError:
                finish = "abort"
        return _generation(length, finish, version)

    async def _decode(self) -> None:
        """A token for everybody, again and again, on an absolute clock: lateness does not add up."""
        due = time.perf_counter()
        while self._left:
            due += self._world.token_seconds(len(self._left))
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            for done in list(self._left):
                self._left[done] -= 1
                if self._left[done] <= 0:
                    del self._left[done]
                    if not done.done():
                        done.set_result(None)


def _generation(length: int, finish: str, version: int) -> Generation:
    log_probs = np.full(length, -1.0, dtype=np.float32)
    spans = (VersionSpan(version, 0, length),)
    return Generation(np.ones(length, dtype=np.int32), log_probs, finish, spans)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
