"""Early stop: a prompt whose first samples have equal rewards gets no more, in every kind of rollout."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Group, Needs, Status
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.rollouts.asynchronous import AsynchronousSource
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.probing import has_equal_rewards
from rlrun.runner.rollouts.rollout_source import Batch
from rlrun.runner.rollouts.synchronous import SynchronousSource
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Engines, Grader, Prompts, policy, prompt, sample
from tests.runner.rollouts.test_curriculum_job import REWARD, job

N, M = 5, 2


class HalfHopeless(Engines):
    """Odd prompts never get a reward; of even ones the first sample does, and the others do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first_seeds: dict[int, int] = {}

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        answers = await super().generate(request)
        index = int(request.tokens[0])
        self.first_seeds.setdefault(index, request.seeds[0])
        return [
            replace(
                answer,
                tokens=np.array([index % 2 == 0 and seed == self.first_seeds[index]], np.int32),
            )
            for answer, seed in zip(answers, request.seeds, strict=True)
        ]


class Asking:
    """A rollout of single sessions."""

    async def run(self, session: Session) -> Trajectory:
        trajectory = Trajectory(session.prompt.tokens)
        trajectory.add(await session.generate(trajectory.tokens(), Sampling(4)))
        return trajectory


async def batch_of(kind: str, engines: Engines, rollout: object = None, probe: int | None = M) -> Batch:
    given: dict[str, Any] = {"mode": "async", "max_staleness": 1} if kind == "asynchronous" else {}
    spec = resolved_rollout(
        batch_size=2, samples_per_prompt=N, max_response_tokens=8, probe_samples=probe, **given
    )
    context = policy(engines, Grader(), deterministic=kind == "lockstep", rollout=rollout)
    context = replace(context, needs=Needs(group_relative=True))
    source = AsynchronousSource if kind == "asynchronous" else SynchronousSource
    rollouts = source(spec, context, Prompts().ahead(spec.oversample or 2), Filters([]))
    batch = await rollouts.next(0)
    await rollouts.close()
    return batch


@pytest.mark.parametrize("rollout", [None, Asking()], ids=["all at once", "one by one"])
@pytest.mark.parametrize("kind", ["stream", "lockstep", "asynchronous"])
async def test_hopeless_groups_are_not_generated_further(kind: str, rollout: object) -> None:
    engines = HalfHopeless()
    batch = await batch_of(kind, engines, rollout)
    assert [group.prompt.index for group in batch.groups] == [0, 2]
    for group in batch.groups:
        index = group.prompt.index
        assert [one.id for one in group.samples] == [f"{index}-{number}" for number in range(N)]
        assert all(one.prompt is group.prompt for one in group.samples)
    seeds = {index: set[int]() for index in range(3)}
    for request in engines.requests:
        if request.tokens[0] in seeds:
            seeds[int(request.tokens[0])].update(request.seeds)
    assert [len(seeds[index]) for index in range(3)] == [N, M, N]
    assert len({request.id for request in engines.requests}) == len(engines.requests)
    metrics = batch.measure()
    assert metrics["rollout/dropped/probe/equal_rewards"] >= 1
    removed = [one for group in batch.removed for one in group.samples if group.prompt.index == 1]
    assert [one.verdicts for one in removed] == [["probe/equal_rewards"]] * M
    if kind == "lockstep":
        assert metrics["rollout/dropped/probe/equal_rewards"] == 2
        assert batch.generated_tokens == 2 * N + 2 * M


async def test_the_samples_are_those_of_a_group_without_a_probe() -> None:
    """Both parts have the seeds that they have without a probe."""
    engines, whole = HalfHopeless(), HalfHopeless()
    await batch_of("lockstep", engines)
    await batch_of("lockstep", whole, probe=None)
    parts = [request.seeds for request in engines.requests if request.tokens[0] == 0]
    [together] = [request.seeds for request in whole.requests if request.tokens[0] == 0]
    assert parts == [together[:M], together[M:]]


@pytest.mark.parametrize(
    ("rewards", "equal"),
    [([1.0, 1.0], True), ([0.5, 0.5 + 1e-9], True), ([0.0, 1.0], False), ([float("nan")] * 2, False)],
)
def test_equal_rewards(rewards: list[float], equal: bool) -> None:
    samples = [sample(0, number, reward) for number, reward in enumerate(rewards)]
    assert has_equal_rewards(Group(prompt(0), samples)) is equal


def test_a_group_with_a_failed_sample_continues() -> None:
    samples = [sample(0, 0, 1.0), sample(0, 1, 1.0, status=Status.FAILED)]
    assert not has_equal_rewards(Group(prompt(0), samples))


async def test_a_group_whose_second_part_fails_is_lost_as_a_whole() -> None:
    class BreaksLater(HalfHopeless):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            if request.tokens[0] == 0 and 0 in self.first_seeds:
                self.broken.add(0)
            return await super().generate(request)

    batch = await batch_of("stream", BreaksLater())
    assert [group.prompt.index for group in batch.groups] == [2, 4]
    metrics = batch.measure()
    assert metrics["rollout/dropped/generation/failed"] == 1
    assert metrics["rollout/failed"] == N


def test_a_resumed_job_continues_bit_for_bit(tmp_path: Path, install_plugin) -> None:  # type: ignore[no-untyped-def]
    """With a curriculum, whose budget gives some prompts no more samples than the first ones."""
    install_plugin("rewards", "acme_level", "acme_level:Level", REWARD)
    changes = ("rollout.replace_dropped=false", "rollout.probe_samples=2")
    whole = job(tmp_path, "whole", 4, *changes).curve
    first = job(tmp_path, "parts", 2, *changes).curve
    rest = job(tmp_path, "parts", 4, *changes).curve
    assert [*first, *rest] == whole
    assert all(line["rollout/dropped/probe/equal_rewards"] > 0 for line in whole)
