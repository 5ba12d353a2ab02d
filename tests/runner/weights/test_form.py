"""Quantised weights are those of a converted folder, by name, layout and value."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlrun.converters.quantised.int4 import config
from rlrun.runner.weights.form import engine_form
from tests.converters.conversions import convert
from tests.tiny_models import make_tiny_model


@pytest.mark.parametrize(
    ("kind", "family", "suffix", "count"),
    [("fp8-block", "qwen3", "_scale_inv", 14), ("int4-group", "qwen3_moe", "_packed", 24)],
)
def test_pieces_are_those_of_a_converted_folder(
    kind: str, family: str, suffix: str, count: int, tmp_path: Path
) -> None:
    model = make_tiny_model(
        tmp_path / "model", family, hidden_size=256, num_attention_heads=16, dtype=torch.bfloat16
    )
    served = convert(model, "hf", tmp_path / "served", quantise=kind)
    expected = load_file(served / "model.safetensors")
    weights = load_file(model / "model.safetensors")
    form = engine_form("bfloat16", json.loads((served / "config.json").read_text()), weights)
    made = {}
    for name, tensor in weights.items():
        described = form.described(name, tuple(tensor.shape))
        pieces = dict(form.pieces(name, tensor))
        assert {piece: (one.dtype, one.shape) for piece, one in pieces.items()} == {
            piece: (one.dtype, one.shape) for piece, one in described.items()
        }
        made |= pieces
    assert set(made) == set(expected)
    assert sum(name.endswith(suffix) for name in made) == count
    for name, tensor in expected.items():
        assert made[name].dtype == tensor.dtype
        assert torch.equal(made[name].view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"quant_method": "awq"}, "awq, weight_block_size None"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"fp8, weight_block_size \[64, 64\]"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors, weight_block_size None"),
    ],
)
def test_other_quantisation_is_refused(settings: dict[str, object], shown: str) -> None:
    with pytest.raises(
        ValueError, match=rf"quantised as {shown}, but rlrun can only update weights in FP8 blocks"
    ):
        engine_form("bfloat16", {"quantization_config": settings}, ())


@pytest.mark.parametrize(
    ("ignore", "message"),
    [
        (["re:.*self_attn.*", "re:.*shared_experts.*", "lm_head"], None),  # as Kimi-K2-Thinking has it
        (["lm_head"], r"engine.model has model.layers.0.self_attn.q_proj.weight in INT4"),
        (["re:.*proj"], r"engine.model does not have model.layers.0.mlp.experts.0.up_proj.weight in INT4"),
    ],
)
def test_an_int4_folder_packs_what_the_trainer_rounds(ignore: list[str], message: str | None) -> None:
    names = [
        f"model.layers.0.{name}.weight" for name in ("self_attn.q_proj", "mlp.experts.0.up_proj", "mlp.gate")
    ]
    settings = config(ignore, 32)
    with nullcontext() if message is None else pytest.raises(ValueError, match=message):
        assert engine_form("bfloat16", {"quantization_config": settings}, names).int4_group == 32


@pytest.mark.parametrize(
    "settings",
    ["fp8", {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": 3}],
)
def test_a_description_of_another_type_is_named(settings: object) -> None:
    with pytest.raises(ValueError, match="quantization_config"):
        engine_form("bfloat16", {"quantization_config": settings}, ())
