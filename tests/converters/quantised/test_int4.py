"""Four-bit weights: against compressed-tensors on whole tensors, and through transformers' own reader."""

import json
import sys

import pytest
import torch
from safetensors.torch import save_file

from rlrun.converters.convert import copying
from tests.converters.conversions import convert, read_hf, same
from tests.tiny_models import make_tiny_model

pytest.importorskip("compressed_tensors", reason="pip install 'rlrun[int4]'")
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}


@pytest.fixture(scope="module", params=["qwen3", "qwen3_moe"])
def source(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / request.param
    shape = SHAPE | ({"moe_intermediate_size": 128} if request.param == "qwen3_moe" else {})
    return make_tiny_model(folder, request.param, dtype=torch.bfloat16, **shape)


def expected(weight):
    """Numbers and scales, written down plainly."""
    groups = weight.unflatten(1, (-1, 128))
    scales = (groups.abs().amax(2) / 7.5).to(weight.dtype)
    numbers = (groups.float() / scales.float()[..., None]).round().clamp(-8, 7).int()
    return scales, numbers, (numbers * scales.float()[..., None]).flatten(1).to(weight.dtype)


@pytest.mark.parametrize("small_blocks", [False, True], ids=["", "small-blocks"])
def test_numbers_and_scales_are_those_of_plain_torch(small_blocks, source, tmp_path, monkeypatch):
    if small_blocks:
        monkeypatch.setattr(copying, "_BLOCK_BYTES", 1)
    read = read_hf(convert(source, "hf", tmp_path / "out", quantise="int4-group"))
    for name, weight in read_hf(source).items():
        if "_proj" not in name:
            assert torch.equal(read[name], weight)
            continue
        scales, numbers, _ = expected(weight)
        assert torch.equal(read[f"{name}_scale"], scales)
        assert read[f"{name}_shape"].tolist() == list(weight.shape)
        words = read[f"{name}_packed"]
        unpacked = torch.stack([(words >> 4 * i) & 15 for i in range(8)], dim=2).flatten(1) - 8
        assert torch.equal(unpacked, numbers.flatten(1))


def test_and_back(source, tmp_path):
    small = convert(source, "hf", tmp_path / "int4", quantise="int4-group")
    back = convert(small, "hf", tmp_path / "back", dequantise=True)
    wide = {
        name: expected(weight)[2] if "_proj" in name else weight for name, weight in read_hf(source).items()
    }
    assert same(wide, read_hf(back))
    assert "quantization_config" not in json.loads((back / "config.json").read_text())
    middle = convert(small, "dcp", tmp_path / "dcp")
    assert same(wide, read_hf(convert(middle, "hf", tmp_path / "again", model=back)))
    carried = convert(small, "hf", tmp_path / "carried", shard_bytes=100_000, dtype=torch.bfloat16)
    assert same(read_hf(small), read_hf(carried))


def test_transformers_reads_it_as_we_do(tmp_path):
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    source = make_tiny_model(tmp_path / "hf", dtype=torch.bfloat16, **SHAPE)
    small = convert(source, "hf", tmp_path / "int4", quantise="int4-group")
    back = convert(small, "hf", tmp_path / "back", dequantise=True)
    theirs = AutoModelForCausalLM.from_pretrained(
        small, quantization_config=CompressedTensorsConfig(run_compressed=False), dtype=torch.bfloat16
    )
    ours = AutoModelForCausalLM.from_pretrained(back, dtype=torch.bfloat16)
    tokens = torch.arange(40).view(1, 40)
    assert torch.equal(ours(tokens).logits, theirs(tokens).logits)


def test_rows_that_are_no_whole_groups(tmp_path):
    source = make_tiny_model(tmp_path / "hf")
    with pytest.raises(ValueError, match=r"_proj.weight has \d+ columns: int4-group needs a multiple of 128"):
        convert(source, "hf", tmp_path / "out", quantise="int4-group")


def test_other_numbers_are_refused(source, tmp_path):
    small = convert(source, "hf", tmp_path / "int4", quantise="int4-group")
    config = json.loads((small / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 32
    (small / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"number format is .*'group_size': 32"):
        convert(small, "dcp", tmp_path / "dcp")


def test_a_weight_without_its_scales(source, tmp_path):
    small = convert(source, "hf", tmp_path / "int4", quantise="int4-group")
    tensors = read_hf(small)
    tensors.pop("model.layers.0.self_attn.q_proj.weight_scale")
    save_file(tensors, small / "model.safetensors")
    with pytest.raises(ValueError, match=r"q_proj.weight_packed has no weight_scale"):
        convert(small, "dcp", tmp_path / "dcp")


def test_the_library_that_is_missing_is_named(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "compressed_tensors.quantization", None)
    with pytest.raises(ValueError, match=r"int4 needs compressed-tensors: pip install 'rlrun\[int4\]'"):
        convert(source, "hf", tmp_path / "out", quantise="int4-group")
