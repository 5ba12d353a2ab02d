"""gpt-oss as it is published: experts in four bits."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from rlrun.converters.families.model_folder import WeightFolder
from rlrun.models.config_json import read_architecture
from tests.converters.conversions import convert, read_dcp, read_hf, same
from tests.tiny_models import make_tiny_model

SIZES = {"hidden_size": 64, "intermediate_size": 96}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Random bits in blocks; exponents around those of real weights."""
    folder = make_tiny_model(
        tmp_path_factory.mktemp("models") / "hf", "gpt_oss", dtype=torch.bfloat16, **SIZES
    )
    tensors = read_hf(folder)
    for name in [name for name in tensors if name.endswith("_proj")]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(
            256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8
        )
        tensors[f"{name}_scales"] = torch.randint(
            110, 130, (experts, outputs, inputs // 32), dtype=torch.uint8
        )
    save_file(tensors, folder / "model.safetensors")
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    rewrite(folder, quantization_config=settings)
    return folder


def rewrite(folder, **values):
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))


def widened(tensors):
    """By transformers' own dequantisation."""
    wide = {name: tensor for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    for name in [name for name in tensors if name.endswith("_blocks")]:
        scales = tensors[name.replace("_blocks", "_scales")]
        wide[name.removesuffix("_blocks")] = convert_moe_packed_tensors(tensors[name], scales)
    return wide


def test_widened_as_transformers_does(source, tmp_path):
    out = convert(source, "hf", tmp_path / "out", dequantise=True)
    assert same(widened(read_hf(source)), read_hf(out))
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    WeightFolder(out, read_architecture(out))


def test_to_a_distributed_checkpoint_and_back(source, tmp_path):
    middle = convert(source, "dcp", tmp_path / "dcp")
    name = "model.layers.1.mlp.experts.down_proj"
    parameter = read_dcp(middle)["layers.1.moe.routed_experts.inner_experts.mlp2_weight_EDF"]
    assert torch.equal(parameter, widened(read_hf(source))[name].transpose(1, 2))
    assert same(widened(read_hf(source)), read_hf(convert(middle, "hf", tmp_path / "back")))


def test_resharded_as_it_is(source, tmp_path):
    out = convert(source, "hf", tmp_path / "out", shard_bytes=40_000)
    assert same(read_hf(source), read_hf(out))
    assert (source / "config.json").read_bytes() == (out / "config.json").read_bytes()


def test_training_asks_for_wide_weights(source):
    with pytest.raises(
        ValueError, match=r"is quantised \(mxfp4\), .*rlrun convert hf-to-hf SRC DST --quantize none"
    ):
        WeightFolder(source, read_architecture(source))


def test_blocks_without_their_scales(source, tmp_path):
    folder = convert(source, "hf", tmp_path / "hf")
    tensors = read_hf(folder)
    tensors.pop("model.layers.0.mlp.experts.down_proj_scales")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"down_proj_blocks has shape .* no scales that match"):
        convert(folder, "dcp", tmp_path / "dcp")


def test_gpt_oss_is_not_quantised_to_eight_bits(source, tmp_path):
    with pytest.raises(ValueError, match="gpt_oss cannot be quantised"):
        convert(source, "hf", tmp_path / "out", quantise="fp8-block")
