"""A checkpoint of other adapters is refused by the name of the setting that differs."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlrun.models.adapters import LoraShape
from rlrun.runner.trainer.checkpoints.restore_checks import (
    check_adapters,
    check_base,
    check_rounding,
    check_scale,
)
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model

FLOAT8, INT4 = {"precision": "float8"}, {"precision": "int4_qat"}


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
        check_adapters(Path("step-1"), ours, stored(theirs), lora=ours != state())


@pytest.mark.parametrize("shapes", [state(), state("wq", "wo")])
def test_the_same_adapters_are_accepted(shapes):
    check_adapters(Path("step-1"), shapes, stored(shapes), lora=shapes != state())


def test_a_pipeline_stage_reads_the_adapters_of_its_layers():
    whole = state("wq") | {name.replace("layers.0", "layers.1"): shape for name, shape in state("wq").items()}
    check_adapters(Path("step-1"), state("wq"), stored(whole), lora=True)


def test_layers_may_have_different_adapters_and_a_stage_none():
    """Gated DeltaNet has no adapters in most layers."""
    attention = {name.replace("layers.0", "layers.1"): shape for name, shape in state("wq", "w1").items()}
    whole = stored(state("w1") | attention)
    check_adapters(Path("step-1"), state("w1"), whole, lora=True)
    check_adapters(Path("step-1"), state(), whole, lora=True)
    with pytest.raises(ValueError, match="it also has adapters of wq"):
        check_adapters(
            Path("step-1"),
            {name: shape for name, shape in attention.items() if "wq" not in name},
            whole,
            lora=True,
        )


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


@pytest.mark.parametrize(
    ("stored", "group", "reason"),
    [
        (None, 32, 'precision not "int4_qat", found "int4_qat" with int4_group = 32'),
        (32, None, 'precision "int4_qat" with int4_group = 32, found not "int4_qat"'),
        (32, 64, 'precision "int4_qat" with int4_group = 32, found "int4_qat" with int4_group = 64'),
    ],
)
def test_another_rounding_of_the_policy_is_refused(stored, group, reason):
    with pytest.raises(ValueError, match=reason):
        check_rounding(Path("step-1"), stored, group)
    check_rounding(Path("step-1"), group, group)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    sizes = {"intermediate_size": 128}  # of which 64 is a divisor
    return make_tiny_model(tmp_path_factory.mktemp("model") / "qwen3", scale=0.1, pad_token_id=None, **sizes)


@pytest.fixture
def start(folder):
    """Makes ranks that train in bfloat16, and closes them afterwards."""
    ranks = []

    def make(**trainer):
        ranks.append(make_rank(folder, make_spec(folder, dtype="bfloat16", **trainer)))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.close()


def train(rank, folder):
    sequences = make_sequences()
    (metrics,) = rank.policy.train(sequences, plan(sequences, make_spec(folder)))
    return metrics["train/grad_norm"]


@pytest.mark.parametrize(("before", "after"), [(FLOAT8, {}), ({}, FLOAT8)], ids=["to bfloat16", "to float8"])
def test_a_run_continues_with_other_products_from_the_same_state(before, after, start, folder, tmp_path):
    pytest.importorskip("torchao", reason="pip install 'rlrun[low-precision]'")
    first, second = start(**before), start(**after)
    train(first, folder)
    first.save(tmp_path / "step-1")
    second.load(tmp_path / "step-1")
    saved, loaded = first.policy.state(), second.policy.state()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    norms = train(first, folder), train(second, folder)
    assert norms[0] != norms[1]
    assert norms[0] == pytest.approx(norms[1], rel=0.2)


@pytest.mark.parametrize(
    ("before", "after"),
    [(INT4, {}), ({}, INT4), (INT4, INT4 | {"int4_group": 64})],
    ids=["to bfloat16", "to int4_qat", "to another group"],
)
def test_a_run_keeps_the_rounding_that_engines_get(before, after, start, folder, tmp_path):
    start(**before).save(tmp_path / "step-1")
    rank = start(**after)
    with pytest.raises(ValueError, match="engines would get another policy"):
        rank.load(tmp_path / "step-1")
