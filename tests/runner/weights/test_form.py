"""Eight-bit weights are those of a converted folder, by name, layout and value."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlrun.runner.weights.form import engine_form
from tests.converters.conversions import convert
from tests.tiny_models import make_tiny_model


def test_pieces_are_those_of_a_converted_folder(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", hidden_size=256, num_attention_heads=16)
    served = convert(model, "hf", tmp_path / "served", quantise="fp8-block")
    form = engine_form("float32", json.loads((served / "config.json").read_text()))
    expected = load_file(served / "model.safetensors")
    made = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        described = form.described(name, tuple(tensor.shape))
        pieces = dict(form.pieces(name, tensor))
        assert {piece: (one.dtype, one.shape) for piece, one in pieces.items()} == {
            piece: (one.dtype, one.shape) for piece, one in described.items()
        }
        made |= pieces
    assert set(made) == set(expected)
    assert sum(name.endswith("_scale_inv") for name in made) == 14
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
        engine_form("bfloat16", {"quantization_config": settings})
