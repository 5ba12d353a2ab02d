"""What a micro-batch is as tensors: which rows predict which tokens, and what each token weighs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.packed_batch import common_size, make_loss_batch, make_pack, packed_size

CPU = torch.device("cpu")


def sequence(tokens, prompt, mask, **changes):
    response = len(tokens) - prompt
    return TrainSequence(
        tokens=np.array(tokens, np.int32),
        prompt_length=prompt,
        loss_mask=np.array(mask, np.float32),
        advantages=np.arange(response, dtype=np.float32),
        rollout_log_probs=-np.arange(1, response + 1, dtype=np.float32),
        execution="0",
        **{name: np.full(response, value, np.float32) for name, value in changes.items()},
    )


ONE, TWO = sequence([5, 6, 7, 8], 2, [1, 0]), sequence([9, 10, 11], 1, [1, 1])


def test_the_token_before_predicts_each_response_token():
    pack = make_pack([ONE, TWO], 8, CPU)
    assert pack.tokens.tolist() == [[5, 6, 7, 8, 9, 10, 11, 0]]
    assert pack.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert pack.rows.tolist() == [1, 2, 4, 5]
    assert pack.targets.tolist() == [7, 8, 10, 11]
    assert pack.response_lengths == (2, 2)
    assert pack.documents.lengths == (4, 3, 1)
    assert pack.longest == 4
    assert pack.own_responses is None


@pytest.mark.parametrize(
    ("tokens", "multiple", "size", "expected"),
    [(7, 1, 0, 7), (7, 8, 0, 8), (8, 8, 0, 8), (4, 8, 9, 16), (0, 8, 0, 8), (0, 1, 0, 1)],
)
def test_packs_are_filled_up(tokens, multiple, size, expected):
    assert packed_size(tokens, multiple, size) == expected


def group(*responses, prompt=40):
    """Sequences that share a prompt of `prompt` tokens."""
    stem = list(range(100, 100 + prompt))
    return [sequence([*stem, *response], prompt, [1] * len(response)) for response in responses]


def test_a_shared_prompt_is_packed_once():
    pack = make_pack(group([9, 8], [7], [7, 6, 5]), 8, CPU, share=True)
    assert pack.tokens[0].tolist() == [*range(100, 140), 7, 6, 5, 9, 8, *[0] * 3]
    assert pack.positions.tolist() == [*range(40), 40, 41, 42, 40, 41, 0, 1, 2]
    assert pack.documents.lengths == (45, 3)
    assert pack.documents.branch_ends.tolist() == [*[45] * 40, 43, 43, 43, 45, 45, *[48] * 3]
    assert pack.rows.tolist() == [39, 43, 39, 39, 40, 41]  # the prompt's last token predicts three
    assert pack.targets.tolist() == [9, 8, 7, 7, 6, 5]
    assert pack.response_lengths == (2, 1, 3)
    assert (pack.longest, pack.filling) == (43, 3)


def test_a_value_head_also_reads_the_last_token_of_each_branch():
    pack = make_pack(group([9, 8], [7]), 1, CPU, share=True, ends=True)
    assert pack.rows.tolist() == [39, 41, 42, 39, 40]
    assert pack.response_lengths == (3, 2)


def test_experts_of_a_shared_token_are_packed_once():
    one, two = (replace(s, experts=np.arange(len(s.tokens))[:, None]) for s in group([9], [7, 6]))
    pack = make_pack([one, two], 1, CPU, share=True)
    assert pack.experts[:, 0].tolist() == [*range(40), 40, 41, 40]


@pytest.mark.parametrize(("share", "expected"), [(False, 2 * 41), (True, 42)])
def test_the_largest_micro_batch_decides_about_the_common_size(share, expected):
    assert common_size([group([1], [2]), group([1]), []], 1, share=share) == expected
    assert common_size([[], []], 8, share=share) == 8


def test_every_token_weighs_its_sequences_share_where_it_is_trained():
    batch = make_loss_batch([ONE, TWO], [0.5, 0.25], False, CPU)
    assert batch.loss_mask.tolist() == [1, 0, 1, 1]
    assert batch.weights.tolist() == [0.5, 0, 0.25, 0.25]
    assert batch.sample.tolist() == [0, 0, 1, 1]
    assert batch.num_samples == 2
    assert batch.advantages.tolist() == [0, 1, 0, 1]
    assert batch.rollout_log_probs.tolist() == [-1, -2, -1, -2]
    assert batch.reference_log_probs is None


@pytest.mark.parametrize(
    ("known", "old_is_rollout", "expected"),
    [
        pytest.param({}, False, None, id="those of this pass"),
        pytest.param({}, True, [-1, -2], id="the engine's"),
        pytest.param({"old_log_probs": -7.0}, False, [-7, -7], id="those of the pass before"),
        pytest.param({"old_log_probs": -7.0}, True, [-7, -7], id="those of the pass before, whatever else"),
    ],
)
def test_old_log_probs(known, old_is_rollout, expected):
    batch = make_loss_batch([sequence([1, 2, 3], 1, [1, 1], **known)], [1.0], old_is_rollout, CPU)
    assert (batch.old_log_probs is None) == (expected is None)
    if expected is not None:
        assert batch.old_log_probs.tolist() == expected


def test_a_rank_without_sequences_has_nothing_to_lose():
    batch = make_loss_batch([], [], True, CPU)
    assert (len(batch.weights), batch.num_samples) == (0, 0)
    assert batch.reference_log_probs is not None  # the KL to a reference is a metric on every rank


def test_the_references_log_probs_come_along():
    batch = make_loss_batch([sequence([1, 2], 1, [1], reference_log_probs=-3.0)], [1.0], False, CPU)
    assert batch.reference_log_probs.tolist() == [-3]
