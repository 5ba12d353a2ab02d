"""The slots that tensors have in a buffer."""

from itertools import pairwise

import pytest

from rlrun.runner.weights.tensor_slots import ALIGNMENT, end_of, layout, num_bytes

SHAPES = {
    "model.embed_tokens.weight": (10, 4),
    "model.layers.0.self_attn.v_proj.weight": (2, 4),
    "model.layers.0.self_attn.q_norm.weight": (3,),
    "model.layers.0.mlp.up_proj.weight": (6, 4),
    "model.layers.0.self_attn.q_proj.weight": (4, 4),
    "model.layers.0.self_attn.k_proj.weight": (2, 4),
    "model.layers.0.mlp.gate_proj.weight": (6, 4),
    "model.layers.0.self_attn.k_proj.bias": (2,),
    "model.layers.0.self_attn.q_proj.bias": (4,),
    "model.layers.0.self_attn.v_proj.bias": (2,),
    "model.layers.10.mlp.gate_proj.weight": (6, 4),
}


def test_fused_matrices_have_no_gap_and_runs_are_aligned() -> None:
    slots = {slot.name: slot for slot in layout(SHAPES, "bfloat16", start=64)}
    assert set(slots) == set(SHAPES)
    for run in (
        [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"],
        [f"model.layers.0.self_attn.{part}_proj.bias" for part in "qkv"],
        [f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up")],
    ):
        assert slots[run[0]].offset % ALIGNMENT == 0
        for before, after in pairwise(run):
            assert slots[after].offset == slots[before].offset + num_bytes(slots[before])


def test_nothing_overlaps() -> None:
    slots = sorted(layout(SHAPES, "float32", start=64), key=lambda slot: slot.offset)
    assert slots[0].offset == 64
    for before, after in pairwise(slots):
        assert after.offset >= before.offset + num_bytes(before)
    assert end_of(slots) == slots[-1].offset + num_bytes(slots[-1])
    assert end_of([]) == 0


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(
        ValueError, match="'int8' of shared weights: it must be one of float32, bfloat16, float16"
    ):
        layout(SHAPES, "int8")
