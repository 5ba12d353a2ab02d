"""Tests of the plugin. The first one checks the contract of algorithms."""

import math

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.testing import check_algorithm, micro_batch


def test_contract() -> None:
    check_algorithm("topr", {"cap": 2.0})


def test_bad_samples_fade_and_good_ones_do_not() -> None:
    import torch

    inputs = micro_batch(
        num_tokens=2,
        num_samples=2,
        log_probs=torch.tensor([-3.0, -3.0], requires_grad=True),
        old_log_probs=torch.tensor([-1.0, -1.0]),
        advantages=torch.tensor([1.0, -1.0]),
        mask=torch.ones(2),
        sample=torch.tensor([0, 1]),
    )
    weights = build("algorithms", "topr", {}).loss(inputs).metrics["topr/weight"]
    assert weights.tolist() == pytest.approx([1.0, math.exp(-2)])
