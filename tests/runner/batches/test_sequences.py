import numpy as np

from rlrun.plugins.registry import build
from rlrun.plugins.types import Group, VersionSpan
from rlrun.runner.batches.columns import to_columns
from rlrun.runner.batches.reduction import token_scales
from rlrun.runner.batches.sequences import (
    to_sequences,
    with_advantages,
    with_proximal_shares,
    with_reference,
)
from tests.runner.loop_fakes import prompt, sample


def test_a_sample_without_a_response_counts_among_the_step_s() -> None:
    groups = [Group(prompt(0), [sample(0, 0, length=2), sample(0, 1, length=0)])]
    sequences = to_sequences(groups)
    assert [len(one.loss_mask) for one in sequences] == [2, 0]
    masks, executions = [one.loss_mask for one in sequences], [one.execution for one in sequences]
    assert token_scales(masks, executions, "per_sample_mean", 8)[0] == 1 / (2 * 2)
    assert token_scales(masks, executions, "dr_grpo", 8)[0] == 1 / (2 * 8)
    with_reference(sequences, groups, [np.ones(2, np.float32), np.zeros(0, np.float32)])
    arrays = [one.reference_log_probs for one in groups[0].samples]
    assert [len(array) for array in arrays if array is not None] == [2, 0]


def test_tokens_without_recorded_experts_are_left_to_the_router() -> None:
    """The last token that was made, and the prompt of a sample without an answer."""
    routed = sample(0, 0, length=2, experts=np.ones((4, 6), np.int16))
    routed_too, unanswered = to_sequences([Group(prompt(0), [routed, sample(0, 1, length=0)])])
    assert routed_too.experts is not None and unanswered.experts is not None
    assert routed_too.experts[:, 0].tolist() == [1, 1, 1, 1, -1]
    assert unanswered.experts.tolist() == [[-1] * 6] * 3


def test_the_share_of_a_token_grows_with_the_updates_since_it_was_made() -> None:
    """A-3PO: (v_prox - v_behave) / (v_theta - v_behave), where the update of version 5 makes version 6."""
    stale = sample(0, 0, length=4)
    stale.versions = (VersionSpan(5, 0, 1), VersionSpan(4, 1, 2), VersionSpan(2, 2, 4))
    groups = [Group(prompt(0), [stale, sample(0, 1, length=0)])]
    with_shares, without = with_proximal_shares(to_sequences(groups), groups, 5)
    assert with_shares.proximal_share is not None and without.proximal_share is not None
    np.testing.assert_allclose(with_shares.proximal_share, [0, 1 / 2, 3 / 4, 3 / 4])
    assert len(without.proximal_share) == 0


def test_no_array_is_carried_for_weights_that_no_sample_has() -> None:
    groups = [Group(prompt(0), [sample(0, 0, length=2), sample(0, 1, length=3)])]
    assert not {"cross_entropy"} & to_columns(to_sequences(groups), [0, 1]).arrays.keys()
    groups[0].samples[1].cross_entropy = np.array([0, 1, 0], np.float32)
    columns = to_columns(to_sequences(groups), [0, 1])
    assert columns.arrays["cross_entropy"].tolist() == [0, 0, 0, 1, 0]


def test_weights_of_the_kl_are_those_of_all_sequences_or_of_none() -> None:
    groups = [Group(prompt(0), [sample(0, 0, length=2), sample(0, 1, length=3)])]
    assert all(one.kl_weights is None for one in to_sequences(groups))
    groups[0].samples[1].kl_weights = np.array([0, 0.5, 2], np.float32)
    columns = to_columns(to_sequences(groups), [0, 1])
    assert columns.arrays["kl_weights"].tolist() == [1, 1, 0, 0.5, 2]


def test_weights_of_the_policy_s_tokens_multiply_their_advantages() -> None:
    groups = [Group(prompt(0), [sample(0, 0, 1.0, length=2), sample(0, 1, 0.0, length=2)])]
    algorithm = build("algorithms", "dr_grpo", {})
    groups[0].samples[1].policy_weights = np.array([0.5, 2], np.float32)
    trained = with_advantages(to_sequences(groups), groups, algorithm)
    assert [one.advantages.tolist() for one in trained] == [[0.5, 0.5], [-0.25, -1.0]]
    assert groups[0].samples[1].advantages.tolist() == [-0.25, -1.0]


def test_a_sample_that_is_left_out_is_not_trained_on_what_it_was_given_either() -> None:
    one = sample(0, 0, length=2, cross_entropy=np.ones(2, np.float32))
    one.stop_training()
    assert not one.loss_mask.any()
    assert not one.cross_entropy.any()
