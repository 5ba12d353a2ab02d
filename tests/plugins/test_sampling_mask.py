"""Sampling masks: cut, joined, and put together over the turns of a conversation."""

import numpy as np

from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.sampling_mask import SamplingMask, joined_masks
from rlrun.plugins.types import VersionSpan
from tests.runner.loop_fakes import sample


def mask(*candidates: list[int]) -> SamplingMask:
    """The mask of a token for each list."""
    ids = np.array([one for own in candidates for one in own], np.int32)
    return SamplingMask(ids, np.array([len(own) for own in candidates], np.int32))


def lists(mask: SamplingMask) -> list[list[int]]:
    ends = np.cumsum(mask.lengths)[:-1]
    return [own.tolist() for own in np.split(mask.ids, ends)] if len(mask) else []


def made(mask: SamplingMask | None, length: int) -> Generation:
    spans = (VersionSpan(0, 0, length),)
    return Generation(
        np.full(length, 7, np.int32), np.zeros(length, np.float32), "stop", spans, sampling_mask=mask
    )


def test_parts_and_single_tokens_of_a_mask() -> None:
    whole = mask([5, 9], [], [7], [1, 2, 3])
    assert lists(whole.part(0, 4)) == [[5, 9], [], [7], [1, 2, 3]]
    assert lists(whole.part(1, 3)) == [[], [7]]
    assert lists(whole.part(2, 2)) == []
    assert lists(whole.take(np.array([0, 3]))) == [[5, 9], [1, 2, 3]]
    assert lists(whole.take(np.array([], np.int64))) == []
    assert lists(SamplingMask.joined([whole.part(0, 1), whole.part(1, 4)])) == lists(whole)
    assert lists(SamplingMask.joined([])) == []


def test_a_part_without_a_mask_counts_as_the_whole_vocabulary() -> None:
    both = joined_masks([mask([5], [6]), None], [2, 3])
    assert both is not None
    assert lists(both) == [[5], [6], [], [], []]
    assert joined_masks([None, None], [2, 3]) is None
    assert joined_masks([], []) is None


def test_given_tokens_of_a_conversation_have_no_candidates() -> None:
    one = Trajectory(np.array([1], np.int32))
    one.add(made(mask([7, 8], [7]), 2))
    one.give([4, 4])
    one.add(made(mask([7, 9, 10]), 1))
    one.give([5])
    found = one.sampling_mask()
    assert found is not None
    assert lists(found) == [[7, 8], [7], [], [], [7, 9, 10]]
    assert len(found) == len(one.response()[0])


def test_a_trajectory_of_whole_distributions_has_no_mask() -> None:
    one = Trajectory(np.array([1], np.int32))
    assert one.sampling_mask() is None
    one.add(made(None, 2))
    assert one.sampling_mask() is None


def test_a_token_that_was_the_only_candidate_was_made_by_the_policy() -> None:
    zeros = np.zeros(3, np.float32)
    one = sample(length=3, loss_mask=zeros, log_probs=zeros, sampling_mask=mask([7], [], [7, 8]))
    assert one.made.tolist() == [True, False, True]


def test_which_sampling_cuts_the_vocabulary() -> None:
    rows = {(1.0, -1): False, (0.9, -1): True, (1.0, 1): True, (0.9, 50): True}
    for (top_p, top_k), cuts in rows.items():
        assert Sampling(4, top_p=top_p, top_k=top_k).cuts_vocabulary is cuts
