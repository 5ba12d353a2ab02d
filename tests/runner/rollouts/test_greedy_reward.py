"""The greedy response beside each group: generated and scored in every mode, and never part of the group."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.buffers.by_age import AgeParams, Fifo
from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Group, Needs, Status
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.records.saved_rollouts import records_to_groups, whole_record
from rlrun.runner.rollouts.asynchronous import AsynchronousSource
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.partial import PartialSource
from rlrun.runner.rollouts.rollout_source import RolloutSource
from rlrun.runner.rollouts.synchronous import SynchronousSource
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Engines, Grader, Prompts, policy

SIZES = {"batch_size": 3, "samples_per_prompt": 2, "max_response_tokens": 8, "top_p": 0.9}


class GreedyEngines(Engines):
    """Greedy responses are the prompt's index modulo 2; engines of sampled ones are those of `Engines`."""

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        answers = await super().generate(request)
        if request.sampling.temperature == 0:
            token = np.array([int(request.tokens[0]) % 2], np.int32)
            answers = [replace(answer, tokens=token) for answer in answers]
        return answers


class Asking:
    """A rollout of single sessions, with settings of its own."""

    async def run(self, session: Session) -> Trajectory:
        trajectory = Trajectory(session.prompt.tokens)
        trajectory.add(await session.generate(trajectory.tokens(), Sampling(4, temperature=0.5)))
        return trajectory


def source(
    kind: str, engines: Engines, grader: Grader | None = None, rollout: object = None
) -> RolloutSource:
    given: dict[str, Any] = {}
    if kind == "partial":
        given = {"partial": True, "max_staleness": 2, "oversample": 3}
    elif kind == "asynchronous":
        given = {"mode": "async", "max_staleness": 1}
    spec = resolved_rollout(**SIZES | given)
    context: RolloutContext = replace(
        policy(engines, grader, deterministic=kind == "lockstep", rollout=rollout),
        needs=Needs(greedy_reward=True),
    )
    prompts = Prompts().ahead(spec.oversample or spec.batch_size)
    if kind == "partial":
        return PartialSource(spec, context, prompts, Filters([]), Fifo(AgeParams()))
    kinds = {"asynchronous": AsynchronousSource}
    return kinds.get(kind, SynchronousSource)(spec, context, prompts, Filters([]))


async def groups_of(kind: str, engines: Engines, **given: Any) -> tuple[list[Group], dict[str, float]]:
    rollouts = source(kind, engines, **given)
    batch = await rollouts.next(0)
    metrics = batch.measure()
    await rollouts.close()
    return batch.groups, metrics


KINDS = ["stream", "lockstep", "asynchronous", "partial"]


@pytest.mark.parametrize("rollout", [None, Asking()], ids=["all at once", "one by one"])
@pytest.mark.parametrize("kind", KINDS)
async def test_samples_have_the_reward_of_the_greedy_response_to_their_prompt(
    kind: str, rollout: object
) -> None:
    engines = GreedyEngines()
    groups, metrics = await groups_of(kind, engines, rollout=rollout)
    assert [group.prompt.index for group in groups] == [0, 1, 2]
    for group in groups:
        assert [one.id for one in group.samples] == [f"{group.prompt.index}-{k}" for k in range(2)]
        assert [one.greedy_reward for one in group.samples] == [group.prompt.index % 2] * 2
    asked = [request for request in engines.requests if request.tokens[0] < 3]
    greedy = [request for request in asked if request.sampling.temperature == 0]
    assert sorted(int(request.tokens[0]) for request in greedy) == [0, 1, 2]
    assert all(len(request.seeds) == 1 and request.sampling.top_p == 1 for request in greedy)
    assert not {request.id for request in greedy} & {one.id for one in asked if one not in greedy}
    if kind == "lockstep":
        assert metrics["rollout/greedy_reward"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_group_without_a_greedy_reward_is_dropped_and_replaced(kind: str) -> None:
    class Failing(Grader):
        async def score(self, samples: Any) -> None:
            await super().score(samples)
            for one in samples:
                if one.id == "1-greedy":
                    one.status, one.reward = Status.FAILED, float("nan")

    groups, metrics = await groups_of(kind, GreedyEngines(), grader=Failing())
    assert [group.prompt.index for group in groups] == [0, 2, 3]
    assert metrics["rollout/dropped/generation/no_greedy_reward"] == 1
    assert metrics["rollout/failed"] == 0


async def test_what_a_batch_measures_is_that_of_its_own_samples() -> None:
    engines = GreedyEngines()
    groups, metrics = await groups_of("stream", engines)
    rewards = [one.reward for group in groups for one in group.samples]
    assert metrics["rollout/reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert metrics["rollout/lost_frac"] == 0
    assert len(asyncio.all_tasks()) <= 2  # this test and the read-ahead


async def test_a_saved_sample_keeps_the_greedy_reward() -> None:
    groups, _ = await groups_of("stream", GreedyEngines())
    records = [whole_record(group, one) for group in groups for one in group.samples]
    read = records_to_groups(records)
    assert [one.greedy_reward for group in read for one in group.samples] == [0, 0, 1, 1, 0, 0]
