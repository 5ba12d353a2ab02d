"""`mis` with weights that are normalised over the step, against the definition in plain Python.

The definition is that of slime's example `train_infer_mismatch_helper`: weights are bounded, then divided by
their mean over the batch, in which rejected tokens count; rejection and veto only change the mask.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.plugins.testing import group
from rlrun.plugins.types import Group, LossInputs, Sample, Status

MASKS = [["1011", "1", "110111"], ["011", "11111"]]
REWARDS = [[1.0, 0.0, 0.5], [0.0, 2.0]]
VETO = 1e-3
BOUNDS = {"low": 0.5, "high": 2.0}


def make_groups() -> list[Group]:
    """Returns a step whose last group also has a failed sample, which counts in nothing."""
    rng = np.random.default_rng(5)
    groups = [
        group([*rewards, math.nan][: len(masks) + number], [*map(len, masks), 3][: len(masks) + number])
        for number, (rewards, masks) in enumerate(zip(REWARDS, MASKS, strict=True))
    ]
    for own, masks in zip(groups, MASKS, strict=True):
        for sample, mask in zip(own.samples, [*masks, "111"], strict=False):
            sample.loss_mask = np.array([bit == "1" for bit in mask], np.float32)
            sample.log_probs = -np.abs(rng.normal(1.0, 0.6, len(mask))).astype(np.float32)
            sample.policy_log_probs = sample.log_probs + rng.normal(0, 0.7, len(mask)).astype(np.float32)
    groups[0].samples[2].policy_log_probs[3] -= 9.0
    groups[1].samples[-1].status = Status.FAILED
    return groups


def counted(groups: Sequence[Group]) -> list[Sample]:
    return [sample for own in groups for sample in own.samples if sample.status is not Status.FAILED]


def plain_weights(samples: Sequence[Sample], level: str, mode: str, rejects: bool) -> list[list[float]]:
    """Returns each token's weight: `compute_mis_weights` with `tis_batch_normalize`, on the whole batch."""
    everything, masks, means = [], [], []
    for sample in samples:
        mask = [bool(value) for value in sample.loss_mask]
        assert sample.policy_log_probs is not None
        own = [float(a) - float(b) for a, b in zip(sample.policy_log_probs, sample.log_probs, strict=True)]
        total = sum(value for value, counts in zip(own, mask, strict=True) if counts)
        logs = own if level == "token" else [total] * len(own)
        ratios = [math.exp(min(max(value, -20.0), 20.0)) for value in logs]
        kept = mask
        weights = ratios
        if mode == "truncate":
            weights = [min(value, BOUNDS["high"]) for value in ratios]
        elif mode == "clip":
            weights = [min(max(value, BOUNDS["low"]), BOUNDS["high"]) for value in ratios]
        else:
            kept = [BOUNDS["low"] <= value <= BOUNDS["high"] for value in ratios]
        if rejects:
            inside = [0.6 <= math.exp(value) <= 1.5 for value in own]
            vetoed = any(value < math.log(VETO) for value, counts in zip(own, mask, strict=True) if counts)
            kept = [a and b and not vetoed for a, b in zip(kept, inside, strict=True)]
        trained = [value for value, counts in zip(weights, mask, strict=True) if counts]
        means += trained if level == "token" else [sum(trained) / len(trained)]
        everything.append(weights)
        masks.append(kept)
    mean = sum(means) / len(means)
    return [
        [weight / mean * counts for weight, counts in zip(weights, kept, strict=True)]
        for weights, kept in zip(everything, masks, strict=True)
    ]


def loss_inputs(samples: Sequence[Sample], advantages: Sequence[Any]) -> LossInputs:
    """Returns a micro-batch of the samples, before the first update of the step."""

    def flat(rows: Sequence[Any]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(rows)).double()

    old = flat([sample.policy_log_probs for sample in samples])
    lengths = torch.tensor([len(sample.tokens) for sample in samples])
    return LossInputs(
        log_probs=old.clone().requires_grad_(),
        entropy=torch.zeros_like(old),
        old_log_probs=old,
        rollout_log_probs=flat([sample.log_probs for sample in samples]),
        reference_log_probs=None,
        advantages=flat(advantages),
        mask=flat([sample.loss_mask for sample in samples]),
        sample=torch.repeat_interleave(torch.arange(len(samples)), lengths),
        num_samples=len(samples),
    )


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("mode", ["truncate", "clip", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("algorithm", ["grpo", "cispo", "reinforce_plus_plus_baseline", "rloo"])
def test_weights_are_divided_by_their_mean_over_the_step(
    algorithm: str, level: str, mode: str, rejects: bool
) -> None:
    correction: dict[str, Any] = {"type": "mis", "level": level, "mode": mode, "high": BOUNDS["high"]}
    correction |= {"low": BOUNDS["low"]} if mode != "truncate" else {}
    correction |= {"rejection": {"low": 0.6, "high": 1.5}, "veto": VETO} if rejects else {}
    plain = build("algorithms", algorithm, {})
    normalised = build("algorithms", algorithm, {"correction": correction | {"normalize": True}})
    assert normalised.needs.policy_log_probs and not plain.needs.policy_log_probs

    groups = make_groups()
    samples = counted(groups)
    counts = [s.status is not Status.FAILED for own in groups for s in own.samples]
    pairs = [
        [values for values, count in zip(each.advantages(groups), counts, strict=True) if count]
        for each in (plain, normalised)
    ]
    weights = plain_weights(samples, level, mode, rejects)
    masked = [w for own, s in zip(weights, samples, strict=True) for w in np.array(own)[s.loss_mask > 0]]
    assert (0.0 in masked) == (rejects or mode == "mask")
    for part in (slice(0, 2), slice(2, None)):  # two micro-batches, which know nothing of each other
        expected = plain.loss(loss_inputs(samples[part], pairs[0][part])).loss
        inputs = loss_inputs(samples[part], pairs[1][part])
        loss = normalised.loss(inputs).loss
        factors = torch.tensor([weight for own in weights[part] for weight in own])
        trained = inputs.mask > 0
        torch.testing.assert_close(loss[trained], (expected * factors)[trained], rtol=1e-5, atol=1e-6)


def test_a_step_without_trained_tokens_keeps_its_weights() -> None:
    groups = make_groups()
    for sample in counted(groups):
        sample.loss_mask = np.zeros(len(sample.tokens), np.float32)
    algorithm = build("algorithms", "grpo", {"correction": {"type": "mis", "normalize": True}})
    plain = build("algorithms", "grpo", {})
    for found, expected in zip(algorithm.advantages(groups), plain.advantages(groups), strict=True):
        np.testing.assert_array_equal(found, expected)
