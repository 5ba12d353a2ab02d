"""What a micro-batch is as tensors: which rows predict which tokens, and what each token weighs."""

import numpy as np
import pytest
import torch

from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.packed_batch import make_loss_batch, make_pack, packed_size

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
    ("lengths", "multiple", "size", "expected"),
    [([4, 3], 1, 0, 7), ([4, 3], 8, 0, 8), ([4, 4], 8, 0, 8), ([4], 8, 9, 16), ([], 8, 0, 8), ([], 1, 0, 1)],
)
def test_packs_are_filled_up(lengths, multiple, size, expected):
    assert packed_size(lengths, multiple, size) == expected


def test_every_token_weighs_its_sequences_share_where_it_is_trained():
    batch = make_loss_batch([ONE, TWO], [0.5, 0.25], False, CPU)
    assert batch.mask.tolist() == [1, 0, 1, 1]
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
