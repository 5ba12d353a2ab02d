"""Adapters of experts: the grouped products that CUDA runs give what one expert after the other gives."""

import pytest
import torch

from rlrun.models.adapters import EXPERT_TARGETS
from rlrun.runner.trainer.model.adapted import AdaptedExperts

COUNTS = torch.tensor([8, 0, 16, 10])


@pytest.mark.parametrize("targets", [EXPERT_TARGETS, EXPERT_TARGETS[:1], EXPERT_TARGETS[1:]])
@pytest.mark.parametrize("rank", [4, 16], ids=["rank that is padded", "aligned rank"])
def test_grouped_products_agree_with_single_experts(targets, rank):
    torch.manual_seed(0)
    experts = AdaptedExperts(
        AdaptedExperts.Config(dim=64, hidden_dim=32, num_experts=4, rank=rank, scale=1.5, targets=targets)
    ).bfloat16()
    for weight in experts.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    tokens = torch.randn(COUNTS.sum(), 64).bfloat16()
    single, grouped = experts(tokens, COUNTS), experts._grouped(tokens, COUNTS)
    results = [single, *torch.autograd.grad(single.square().mean(), list(experts.parameters()))]
    others = [grouped, *torch.autograd.grad(grouped.square().mean(), list(experts.parameters()))]
    for ours, theirs in zip(results, others, strict=True):
        assert (ours - theirs).abs().max() < 0.02 * ours.abs().max()
        assert ours.abs().max() > 0
