"""Layouts of eight-bit weights that rlrun reads but does not write, and those that it refuses."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rlrun.converters.convert import copying
from rlrun.converters.quantised.kinds import dequantise
from rlrun.converters.tensors.content import InMemory
from rlrun.converters.tensors.stored import Files
from tests.converters.conversions import convert, read_hf, same
from tests.tiny_models import make_tiny_model

SHAPE = (48, 80)
NAME = "model.layers.0.mlp.up_proj.weight"


def group(**numbers):
    return {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "symmetric": True, **numbers}}


def compressed(*groups, **settings):
    groups = {f"group_{number}": group for number, group in enumerate(groups)}
    described = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    return described | settings


def quantised(block):
    """A weight whose blocks differ in size by orders of magnitude, in FP8, and its factors."""
    torch.manual_seed(0)
    down, across = (-(-size // length) for size, length in zip(SHAPE, block, strict=True))
    factors = 10.0 ** torch.linspace(-3, 3, down * across).view(down, across)
    codes = (torch.randn(SHAPE) * 100).to(torch.float8_e4m3fn)
    return codes, factors


def read(tensors, settings, dtype=torch.float32):
    contents = {name: InMemory(tensor) for name, tensor in tensors.items()}
    config = {"model_type": "qwen3", "quantization_config": settings}
    widened = dequantise(contents, config, dtype)
    return {name: content.rows(Files(), 0, len(tensors[name])) for name, content in widened.items()}


LAYOUTS = {
    "small blocks": ({"quant_method": "fp8", "weight_block_size": [16, 16]}, (16, 16), "_scale_inv"),
    "flat blocks": ({"quant_method": "fp8", "weight_block_size": [8, 40]}, (8, 40), "_scale_inv"),
    "high blocks": ({"quant_method": "fp8", "weight_block_size": [48, 5]}, (48, 5), "_scale_inv"),
    "rows": ({"quant_method": "fp8", "weight_block_size": [1, 16]}, (1, 16), "_scale_inv"),
    "whole": ({"quant_method": "fp8", "weight_block_size": None}, SHAPE, "_scale_inv"),
    "compressed blocks": (compressed(group(strategy="block", block_structure=[16, 20])), (16, 20), "_scale"),
    "compressed groups": (compressed(group(strategy="group", group_size=16)), (1, 16), "_scale"),
    "compressed channels": (compressed(group(strategy="channel")), (1, 80), "_scale"),
    "compressed whole": (compressed(group(strategy="tensor")), SHAPE, "_scale"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_are_those_of_the_libraries(layout):
    settings, block, suffix = LAYOUTS[layout]
    codes, factors = quantised(block)
    values = read({NAME: codes, NAME + suffix: factors}, settings)
    assert values.keys() == {NAME}
    if settings["quant_method"] == "fp8":
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize

        expected = Fp8Dequantize(None)._dequantize_one(codes, factors)
    else:
        pytest.importorskip("compressed_tensors")
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle.forward import dequantize

        arguments = QuantizationArgs(**settings["config_groups"]["group_0"]["weights"])
        # torch has no addition of FP8 numbers, which the library would need for codes in their own type
        expected = dequantize(codes.float(), factors, None, arguments)
    assert torch.equal(values[NAME], expected)


def test_blocks_that_do_not_divide_the_matrix():
    codes, factors = quantised((32, 32))
    wide = factors.repeat_interleave(32, 0).repeat_interleave(32, 1)[:48, :80]
    settings = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    assert torch.equal(
        read({NAME: codes, f"{NAME}_scale_inv": factors}, settings)[NAME], codes.float() * wide
    )


def test_scales_that_are_powers_of_two():
    codes, factors = quantised((16, 16))
    scales = torch.exp2(torch.log2(factors).round()).to(torch.float8_e8m0fnu)
    settings = {"quant_method": "fp8", "weight_block_size": [16, 16], "scale_fmt": "ue8m0"}
    wide = scales.float().repeat_interleave(16, 0).repeat_interleave(16, 1)
    assert torch.equal(read({NAME: codes, f"{NAME}_scale_inv": scales}, settings)[NAME], codes.float() * wide)


BLOCKS = {"quant_method": "fp8", "weight_block_size": [16, 16]}
CODES, FACTORS = quantised((16, 16))
SCALE = f"{NAME}_scale_inv"
BOTH = {NAME: CODES, SCALE: FACTORS}
REFUSED = {
    "blocks of another size": (BOTH, BLOCKS | {"weight_block_size": [32, 32]}, "one scale per 32 x 32 block"),
    "blocks of 128 unless named": (BOTH, {"quant_method": "fp8"}, "one scale per 128 x 128 block or one"),
    "one dimension": (BOTH, BLOCKS | {"weight_block_size": [16]}, r"weight_block_size \[16\]"),
    "zero": (BOTH, BLOCKS | {"weight_block_size": [0, 16]}, r"weight_block_size \[0, 16\]"),
    "a scale per row as a vector": (
        {NAME: CODES, f"{NAME}_scale": FACTORS[0].repeat(16)[:48]},
        compressed(group(strategy="channel")),
        "one scale per channel",
    ),
    "a stack": ({NAME: CODES[None], SCALE: FACTORS[None]}, BLOCKS, r"weight of shape \(1, 48, 80\)"),
    "no scale": ({NAME: CODES}, BLOCKS, "has no scale"),
    "no weight": ({SCALE: FACTORS}, BLOCKS, "is the scale of .*, which should be in FP8 and is not"),
    "a wide weight": ({NAME: CODES.bfloat16(), SCALE: FACTORS}, BLOCKS, "and is torch.bfloat16"),
    "integers": ({NAME: CODES.to(torch.int8), SCALE: FACTORS}, BLOCKS, "and is torch.int8"),
    "e5m2": ({NAME: CODES.to(torch.float8_e5m2), SCALE: FACTORS}, BLOCKS, "and is torch.float8_e5m2"),
    "bytes as scales": ({NAME: CODES, SCALE: FACTORS.byte()}, BLOCKS, "is torch.uint8"),
    "two scales": (BOTH | {f"{NAME}_scale": FACTORS}, BLOCKS, "cannot combine"),
    "a zero point": (BOTH | {f"{NAME}_zero_point": FACTORS}, BLOCKS, "_zero_point, which rlrun"),
    "another number": (BOTH, BLOCKS | {"fmt": "e5m2"}, "fmt 'e5m2'"),
    "asymmetric": (BOTH, compressed(group(strategy="tensor", symmetric=False)), "'symmetric': False"),
    "an unknown strategy": (BOTH, compressed(group(strategy="attn_head")), "attn_head"),
    "two layouts": (
        BOTH,
        compressed(group(strategy="tensor"), group(strategy="channel")),
        "different layouts",
    ),
    "no groups": (BOTH, compressed(), "no config_groups"),
    "rotated": (BOTH, compressed(group(strategy="tensor"), transform_config={"v": 1}), "rotated"),
    "sparse": (
        BOTH,
        compressed(group(strategy="tensor"), sparsity_config={"format": "sparse-24-bitmask"}),
        "sparse-24-bitmask",
    ),
    "no description": ({NAME: CODES}, None, "has no quantization_config"),
    "integers without a description": ({NAME: CODES.to(torch.int8)}, None, "has no quantization_config"),
    "not a table": (BOTH, "fp8", "not a table"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused(case):
    tensors, settings, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        read(tensors, settings)


def test_only_scales_of_activations_are_left_out():
    """A weight of the model whose name merely ends like a scale is kept, so that its family can refuse it."""
    module = NAME.removesuffix(".weight")
    activations = {
        f"{module}.input_scale": torch.ones(1),
        "model.layers.0.self_attn.k_scale": torch.ones(1),
    }
    kept = {
        "model.layers.0.residual_scale": torch.ones(3),
        "model.norm.input_scale": torch.ones(1),
        "mask.bias": torch.ones(2, 2, dtype=torch.bool),
    }
    assert read(BOTH | activations | kept, BLOCKS).keys() == {NAME, *kept}


def test_a_nested_description_is_found():
    config = {"model_type": "kimi_k25", "text_config": {"quantization_config": BLOCKS}}
    contents = {name: InMemory(tensor) for name, tensor in BOTH.items()}
    assert dequantise(contents, config, torch.float32).keys() == {NAME}


@pytest.mark.parametrize("small_blocks", [False, True], ids=["", "a few rows at a time"])
def test_a_folder_with_flat_blocks(small_blocks, tmp_path, monkeypatch):
    if small_blocks:
        monkeypatch.setattr(copying, "_BLOCK_BYTES", 1)
    source = make_tiny_model(tmp_path / "fp8", dtype=torch.bfloat16, hidden_size=96, intermediate_size=160)
    stored, expected = {}, read_hf(source)
    for name, weight in read_hf(source).items():
        stored[name] = weight
        if name.endswith("_proj.weight"):
            down, across = -(-weight.shape[0] // 64), -(-weight.shape[1] // 24)
            factors = 10.0 ** torch.linspace(-2, 0, down * across).view(down, across)
            wide = factors.repeat_interleave(64, 0).repeat_interleave(24, 1)
            wide = wide[: weight.shape[0], : weight.shape[1]]
            stored[name] = (weight.float() / wide).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = factors
            expected[name] = (stored[name].float() * wide).bfloat16()
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [64, 24]}
    (source / "config.json").write_text(json.dumps(config))
    back = convert(source, "hf", tmp_path / "back", dequantise=True)
    assert same(read_hf(back), expected)
