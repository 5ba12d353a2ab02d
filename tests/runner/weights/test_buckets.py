"""Which tensors share a bucket, and at which offsets."""

import pytest
import torch

from rlrun.runner.weights.buckets import (
    WeightSet,
    plan_buckets,
    plan_stage_buckets,
)
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.relay import split_into_rounds
from rlrun.runner.weights.tensor_slots import SegmentError, tensors_in

SHAPES = {
    "model.embed_tokens.weight": (8, 4),
    "model.layers.0.self_attn.q_proj.weight": (256, 130),
    "model.layers.0.input_layernorm.weight": (3,),
    "model.layers.0.mlp.up_proj.weight": (128, 128),
}
PLAIN = Form(torch.bfloat16)
EIGHT = Form(torch.bfloat16, ("lm_head", "model.layers.0.mlp"))


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("form", [PLAIN, EIGHT])
@pytest.mark.parametrize("limit", [None, 1, 70_000, 10**9])
def test_every_tensor_lies_in_one_bucket_without_gaps(form: Form, limit: int | None) -> None:
    buckets = plan_buckets(SHAPES, form, limit)
    assert [name for bucket in buckets for name in bucket.sources] == list(SHAPES)
    for bucket in buckets:
        end = 0
        for slot in bucket.slots:
            assert slot.offset == end
            width = getattr(torch, slot.dtype).itemsize
            assert end % width == 0
            end += torch.Size(slot.shape).numel() * width
        assert end == bucket.size
        assert limit is None or bucket.size <= limit or len(bucket.sources) == 1
    assert len(buckets) == {None: 1, 1: 4, 70_000: 2 if form is PLAIN else 1, 10**9: 1}[limit]


def test_rounds_have_a_bucket_of_each_stage_that_has_more() -> None:
    sizes = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1, "f": 2}  # each tensor a bucket, by its stage
    buckets = plan_stage_buckets(dict.fromkeys(sizes, (4, 4)), sizes, PLAIN, 1)
    rounds = [[bucket.sources[0] for bucket in buckets] for buckets in split_into_rounds(buckets)]
    assert rounds == [["a", "c", "f"], ["b", "d"], ["e"]]


def test_buckets_hold_what_was_gathered_in_the_engines_precision() -> None:
    given = tensors()
    weights = WeightSet(iter(given.items()), PLAIN)
    for bucket in plan_buckets(SHAPES, PLAIN, 70_000):
        buffer = torch.empty(bucket.size, dtype=torch.uint8)
        weights.fill(buffer, bucket)
        for name, view in tensors_in(buffer, bucket.slots).items():
            assert torch.equal(view, given[name].bfloat16())


def test_projections_that_are_served_in_eight_bits_are_sent_so() -> None:
    given = tensors()
    [bucket] = plan_buckets(SHAPES, EIGHT, None)
    buffer = torch.empty(bucket.size, dtype=torch.uint8)
    WeightSet(iter(given.items()), EIGHT).fill(buffer, bucket)
    views = tensors_in(buffer, bucket.slots)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert set(views) == {*SHAPES, f"{name}_scale_inv"}
    assert views[name].dtype == torch.float8_e4m3fn
    assert views["model.layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16
    factors = views[f"{name}_scale_inv"]
    assert factors.shape == (2, 2)
    spread = factors.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :130]
    assert (views[name].float() * spread - given[name]).abs().max() < 0.25


def test_other_tensors_than_planned_are_named() -> None:
    [bucket] = plan_buckets(SHAPES, PLAIN, None)
    buffer = torch.empty(bucket.size, dtype=torch.uint8)
    with pytest.raises(SegmentError, match=r"3 of 4 tensors missing, the first: model\.layers\.0"):
        WeightSet(iter(list(tensors().items())[:1]), PLAIN).fill(buffer, bucket)
