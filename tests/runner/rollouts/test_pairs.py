"""The best and the worst sample of each group become a pair, for algorithms that train on pairs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.types import Drop, Group, Needs, Sample, Status
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.grouping import best_and_worst
from rlrun.runner.rollouts.synchronous import SynchronousSource
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Engines, Grader, Prompts, policy, prompt, sample


def scored(rewards: list[float]) -> Group:
    return Group(prompt(7), [sample(7, number, reward) for number, reward in enumerate(rewards)])


@pytest.mark.parametrize(
    ("rewards", "chosen"),
    [
        ([0.0, 2.0, -1.0, 1.0], ["7-1", "7-2"]),
        ([1.0, 1.0, 0.0, 0.0], ["7-0", "7-3"]),
        ([0.5, 0.5, 0.5], ["7-0", "7-2"]),
        ([float("nan"), 1.0, 3.0], ["7-2", "7-1"]),
    ],
)
def test_the_best_and_the_worst_sample_are_one_execution(rewards: list[float], chosen: list[str]) -> None:
    group = scored(rewards)
    pair = best_and_worst(group)
    assert pair is not None
    assert [one.id for one in pair.samples] == chosen
    assert {one.execution for one in pair.samples} == {"7"}
    assert [one.execution for one in group.samples] == [one.id for one in group.samples], "copies are paired"


def test_a_group_without_two_samples_to_train_on_has_no_pair() -> None:
    assert best_and_worst(scored([1.0, float("nan")])) is None
    group = scored([1.0, 0.0, 2.0])
    group.samples[0].loss_mask = np.zeros(1, np.float32)
    group.samples[1].execution_id = group.samples[2].execution_id = "7-1"
    assert best_and_worst(group) is None


class Numbered(Grader):
    """The reward of a sample is its number; of the groups of prompts in `lost`, one sample has none."""

    def __init__(self, *lost: int) -> None:
        super().__init__()
        self.lost = lost

    async def score(self, samples: Any) -> None:
        for one in samples:
            number = int(one.id.split("-")[1])
            one.reward = float(number)
            if one.prompt.index in self.lost and number:
                one.status, one.reward = Status.FAILED, float("nan")


def drop_the_last(group: Group) -> Drop | None:
    return Drop("last", samples=(3,)) if len(group.samples) > 3 else None


async def test_a_batch_has_pairs_and_its_metrics_all_samples() -> None:
    spec = resolved_rollout(batch_size=3, samples_per_prompt=4, max_response_tokens=8)
    context = replace(policy(Engines(), Numbered(1)), needs=Needs(pairs=True))
    rollouts = SynchronousSource(spec, context, Prompts().ahead(3), Filters([("cut", drop_the_last)]))
    batch = await rollouts.next(0)
    await rollouts.close()
    assert [ids(group.samples) for group in batch.groups] == [["0-2", "0-0"], ["2-2", "2-0"], ["3-2", "3-0"]]
    metrics = batch.measure()
    assert metrics["rollout/dropped/generation/no_pair"] == 1
    assert metrics["rollout/reward/max"] == 3.0
    removed = {one for group in batch.removed for one in ids(group.samples)}
    assert removed >= {"0-1", "0-3", "1-0", "1-1", "1-2", "1-3"} and not removed & {"0-0", "0-2"}


def ids(samples: list[Sample]) -> list[str]:
    return [one.id for one in samples]
