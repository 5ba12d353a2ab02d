"""Eight-bit weights: against plain torch, and through transformers' own reader."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rlrun.converters.convert import copying
from rlrun.converters.quantised.fp8 import GRANULARITIES
from rlrun.converters.quantised.fp8_weights import BLOCK
from tests.converters.conversions import convert, read_hf, same
from tests.tiny_models import make_tiny_model

SHAPE = {"hidden_size": 192, "intermediate_size": 320, "head_dim": 48}
"""Matrices that do not divide into blocks."""
FAMILIES = ["qwen3", "qwen3_moe"]
LARGEST = 448.0


@pytest.fixture(scope="module", params=FAMILIES)
def source(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / request.param
    return make_tiny_model(folder, request.param, dtype=torch.bfloat16, **SHAPE)


def scales_of(weight, granularity):
    """The factors, written down plainly."""
    weight = weight.float()
    if granularity == "tensor":
        return weight.abs().max().view(1) / LARGEST
    if granularity == "channel":
        return weight.abs().amax(1, keepdim=True) / LARGEST
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    scales = torch.empty(rows, columns)
    for i in range(rows):
        for j in range(columns):
            block = weight[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
            scales[i, j] = block.abs().max() / LARGEST
    return scales


def wide(scales, granularity, shape):
    if granularity != "block":
        return scales
    return scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: shape[0], : shape[1]]


@pytest.mark.parametrize("small_blocks", [False, True], ids=["", "small-blocks"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_weights_and_scales_are_those_of_plain_torch(
    granularity, small_blocks, source, tmp_path, monkeypatch
):
    if small_blocks:
        monkeypatch.setattr(copying, "_BLOCK_BYTES", 1)
    read = read_hf(convert(source, "hf", tmp_path / "out", quantise=f"fp8-{granularity}"))
    suffix = "_scale_inv" if granularity == "block" else "_scale"
    for name, weight in read_hf(source).items():
        if "_proj" not in name:
            assert torch.equal(read[name], weight) and name + suffix not in read
            continue
        scales = scales_of(weight, granularity)
        assert torch.equal(read[name + suffix], scales)
        expected = (weight.float() / wide(scales, granularity, weight.shape)).to(torch.float8_e4m3fn)
        assert torch.equal(read[name].float(), expected.float())


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_back_to_bfloat16(granularity, source, tmp_path):
    small = convert(source, "hf", tmp_path / "fp8", quantise=f"fp8-{granularity}")
    back = convert(small, "hf", tmp_path / "back", dequantise=True)
    weights, original = read_hf(back), read_hf(source)
    assert "quantization_config" not in json.loads((back / "config.json").read_text())
    assert weights.keys() == original.keys()
    for name, weight in original.items():
        assert weights[name].dtype == torch.bfloat16
        largest = weight.float().abs().max()
        assert (weights[name].float() - weight.float()).abs().max() <= largest / 16, "three bits of mantissa"
    middle = convert(small, "dcp", tmp_path / "dcp")
    assert same(weights, read_hf(convert(middle, "hf", tmp_path / "again", model=back)))


def test_an_eight_bit_folder_is_resharded_as_it_is(source, tmp_path):
    small = convert(source, "hf", tmp_path / "fp8", quantise="fp8-block")
    again = convert(small, "hf", tmp_path / "again", shard_bytes=100_000)
    assert same(read_hf(small), read_hf(again))
    assert (small / "config.json").read_bytes() == (again / "config.json").read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_blocks_as_we_do(family, tmp_path):
    """Its own dequantisation, on a machine without a GPU."""
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    shape = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "moe_intermediate_size": 128}
    shape = shape if family == "qwen3_moe" else {key: shape[key] for key in list(shape)[:3]}
    source = make_tiny_model(tmp_path / "hf", family, dtype=torch.bfloat16, **shape)
    small = convert(source, "hf", tmp_path / "fp8", quantise="fp8-block")
    back = convert(small, "hf", tmp_path / "back", dequantise=True)
    theirs = AutoModelForCausalLM.from_pretrained(
        small, quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.bfloat16
    )
    ours = AutoModelForCausalLM.from_pretrained(back, dtype=torch.bfloat16)
    assert same(dict(ours.state_dict()), dict(theirs.state_dict()))
    tokens = torch.arange(40).view(1, 40)
    assert torch.equal(ours(tokens).logits, theirs(tokens).logits)


def test_zeros_stay_zeros(tmp_path):
    source = make_tiny_model(tmp_path / "hf", **SHAPE)
    tensors = read_hf(source)
    tensors["model.layers.0.mlp.up_proj.weight"].zero_()
    save_file(tensors, source / "model.safetensors")
    read = read_hf(convert(source, "hf", tmp_path / "out", quantise="fp8-block"))
    assert read["model.layers.0.mlp.up_proj.weight"].float().abs().max() == 0
    assert read["model.layers.0.mlp.up_proj.weight_scale_inv"].unique().tolist() == [1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "gptq"}, "is quantised by 'gptq'"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized"),
    ],
)
def test_other_kinds_are_refused(settings, message, tmp_path):
    source = make_tiny_model(tmp_path / "hf")
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": settings}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        convert(source, "dcp", tmp_path / "dcp")
    assert same(read_hf(source), read_hf(convert(source, "hf", tmp_path / "out")))
