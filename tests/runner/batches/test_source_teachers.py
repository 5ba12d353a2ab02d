"""The teacher of each row's source scores its samples, and no other teacher does."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.algorithms.gkd import GKD, GKDParams
from rlrun.plugins.testing import group
from rlrun.plugins.types import Group
from rlrun.runner.batches.model_handle import PackedSteps
from rlrun.runner.batches.passes import Passes
from rlrun.runner.batches.sequences import samples_of, to_sequences
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.contracts.step_clock import StepClock


class Numbered:
    """A teacher that says its number of every token."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked: list[str] = []

    async def outputs(self, names: Sequence[str], sequences: Sequence[TrainSequence]) -> dict[str, Any]:
        self.asked += [sequence.execution for sequence in sequences]
        shapes = {"log_probs": (), "top_ids": (2,), "top_log_probs": (3,)}
        return {
            name: [np.full((len(one.loss_mask), *shapes[name]), self.number) for one in sequences]
            for name in names
        }


def groups_of(*sources: object) -> list[Group]:
    """One group for each source, of two samples; None: the row names no source."""
    groups = []
    for number, source in enumerate(sources):
        one = group([0.0, 1.0])
        row = replace(one.prompt.row, metadata={} if source is None else {"source": source})
        for k, sample in enumerate(one.samples):
            sample.id, sample.prompt = f"{number}-{k}", replace(one.prompt, row=row)
        groups.append(Group(one.samples[0].prompt, one.samples))
    return groups


async def teach(groups: list[Group], default: Numbered | None, **sources: Numbered) -> list[TrainSequence]:
    passes = Passes(
        GKD(GKDParams()),
        None,  # type: ignore[arg-type]
        None,
        default,  # type: ignore[arg-type]
        None,
        sources,  # type: ignore[arg-type]
        None,
        recompute_old=False,
    )
    return await passes.run(StepClock(), groups, to_sequences(groups), PackedSteps([]))


async def test_each_sample_is_scored_by_the_teacher_of_its_row_s_source() -> None:
    default, code, math = Numbered(0), Numbered(1), Numbered(2)
    groups = groups_of("math", 7, None, "code", "math")
    sequences = await teach(groups, default, math=math, code=code, unused=Numbered(9))
    expected = [2, 2, 0, 0, 0, 0, 1, 1, 2, 2]
    assert [
        int(one.teacher_top_ids[0, 0]) for one in sequences if one.teacher_top_ids is not None
    ] == expected
    assert [int(sample.teacher_log_probs[0]) for sample in samples_of(groups)] == expected
    assert (code.asked, math.asked) == (["3-0", "3-1"], ["0-0", "0-1", "4-0", "4-1"])


async def test_a_mixture_s_numbers_are_names_too() -> None:
    groups = groups_of(1, 0)
    await teach(groups, None, **{"0": Numbered(3), "1": Numbered(4)})
    assert [int(sample.teacher_log_probs[0]) for sample in samples_of(groups)] == [4, 4, 3, 3]


async def test_a_row_without_a_teacher_is_an_error() -> None:
    with pytest.raises(ValueError, match="has teachers of the sources math alone"):
        await teach(groups_of("math", 7), None, math=Numbered(1))
