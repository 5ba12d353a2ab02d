"""Muon on several ranks: experts on ranks of their own, and matrices that FSDP or tensor parallelism cuts."""

from pathlib import Path

import pytest
import torch

from tests.runner.trainer.trainer_cases import run_ranks
from tests.tiny_models import make_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
WORKER = Path(__file__).with_name("muon_worker.py")
LAYOUTS = {
    "whole experts": {"fsdp": 4},
    "cut experts": {"fsdp": 4},
    "parallel experts": {"fsdp": 4, "expert": 2},
    "parallel and cut experts": {"fsdp": 4, "expert": 2},
    "tensor": {"fsdp": 2, "tensor": 2},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("muon")
    folders = {
        count: make_tiny_model(
            root / f"{count}",
            "qwen3_moe",
            num_experts=count,
            num_experts_per_tok=2,
            pad_token_id=None,
            scale=0.1,
        )
        for count in (2, 8)
    }

    def case(name, parallel):
        count = 2 if "cut" in name else 8
        return {"name": name, "folder": str(folders[count]), "parallel": parallel}

    for ranks, cases in (
        (1, [case("alone", {}), case("alone cut", {})]),
        (4, [case(*layout) for layout in LAYOUTS.items()]),
    ):
        run_ranks(WORKER, ranks, cases, root)
    return lambda name: torch.load(root / f"{name}-0.pt", weights_only=False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_does_not_change_the_step(layout, results):
    ours, alone = results(layout), results("alone cut" if "cut" in layout else "alone")
    assert all(torch.equal(ours["resumed"][name], ours["undisturbed"][name]) for name in ours["start"])
    # Newton-Schulz computes in bfloat16. Gradients of experts with few tokens have directions
    # that are only rounding errors, which it enlarges.
    experts = [name for name in alone["start"] if ".mlp.experts." in name]
    steps = torch.stack([(alone["first"][name] - alone["start"][name]).norm() for name in experts])
    errors = torch.stack([(alone["first"][name] - ours["first"][name]).norm() for name in experts])
    assert steps.min() > 0
    assert errors.norm() < 0.05 * steps.norm()


def test_the_layouts_cut_experts_in_every_way(results):
    placements = {layout: results(layout)["placements"] for layout in LAYOUTS}
    assert placements["whole experts"] == {"(Shard(dim=0),)"}
    assert placements["cut experts"] == {"(Shard(dim=1),)"}
    assert placements["parallel experts"] == {"(_StridedShard(dim=0, sf=2), Shard(dim=0))"}
    assert placements["parallel and cut experts"] == {"(Shard(dim=1), Shard(dim=0))"}
    assert placements["tensor"] == {"(Shard(dim=0), Shard(dim=1))", "(Shard(dim=0), Shard(dim=2))"}
