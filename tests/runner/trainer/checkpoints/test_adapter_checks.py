"""A checkpoint of other adapters is refused by the name of the setting that differs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.models.adapters import LoraShape
from rlrun.runner.trainer.checkpoints.distributed import check_adapters, check_base, check_scale


def state(*matrices, rank=4):
    shapes = {"parameters.norm.weight": (8,), "exp_avg.layers.0.wq.lora_a.weight": (rank, 8)}
    for matrix in matrices:
        shapes[f"parameters.layers.0.{matrix}.lora_a.weight"] = (rank, 8)
        shapes[f"parameters.layers.0.{matrix}.lora_b.weight"] = (8, rank)
    return shapes


def of_experts(rank=4):
    """As `state`, with the adapters of a layer's experts."""
    experts = "parameters.layers.0.moe.routed_experts.inner_experts"
    return state("wq") | {f"{experts}.lora_{letter}_down": (4, 8, rank) for letter in "ab"}


def stored(shapes):
    return {name: SimpleNamespace(size=shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        (state("wq"), state("wq", "wo"), "other trainer.lora.targets: it also has adapters of wo"),
        (state("wq", "wo"), state("wq"), "other trainer.lora.targets: it lacks adapters of wo"),
        (state("wq"), state("wq", rank=8), "trainer.lora.rank = 8, found 4: set it to 8"),
        (state("wq"), of_experts(), "other trainer.lora.targets: it also has adapters of experts.down_proj"),
        (of_experts(), of_experts(rank=8), "trainer.lora.rank = 8, found 4: set it to 8"),
        (state("wq"), state(), r"has no adapters: remove \[trainer.lora\]"),
        (state(), state("wq"), r"has adapters: add the run's \[trainer.lora\]"),
    ],
)
def test_other_adapters_are_refused(ours, theirs, reason):
    with pytest.raises(ValueError, match=reason):
        check_adapters(Path("step-1"), ours, stored(theirs))


@pytest.mark.parametrize("shapes", [state(), state("wq", "wo")])
def test_the_same_adapters_are_accepted(shapes):
    check_adapters(Path("step-1"), shapes, stored(shapes))


def test_a_pipeline_stage_reads_the_adapters_of_its_layers():
    whole = state("wq") | {name.replace("layers.0", "layers.1"): shape for name, shape in state("wq").items()}
    check_adapters(Path("step-1"), state("wq"), stored(whole))


def test_another_scale_is_refused():
    check_scale(Path("step-1"), 2.0, LoraShape(4, 8))
    with pytest.raises(ValueError, match=r"adapters times 2, and trainer.lora.alpha = 16, rank = 4"):
        check_scale(Path("step-1"), 2.0, LoraShape(4, 16))


@pytest.mark.parametrize(
    ("stored", "base", "reason"),
    [
        (None, "nf4", 'saved with trainer.lora.base not set, found "nf4"'),
        ("nf4", None, 'saved with trainer.lora.base "nf4", found not set'),
        ("int8", "nf4", 'saved with trainer.lora.base "int8", found "nf4"'),
    ],
)
def test_another_precision_of_the_base_is_refused(stored, base, reason):
    with pytest.raises(ValueError, match=reason):
        check_base(Path("step-1"), stored, LoraShape(4, 8, base=base))
    check_base(Path("step-1"), base, LoraShape(4, 8, base=base))
