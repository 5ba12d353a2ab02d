import numpy as np

from rlrun.plugins.types import Group
from rlrun.runner.batches.reduction import token_scales
from rlrun.runner.batches.sequences import to_sequences, with_reference
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
