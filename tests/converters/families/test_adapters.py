"""Families of torchtitan's that the trainer does not have, on torchtitan's own small flavors."""

import importlib
import json

import pytest
import torch
from safetensors.torch import save_file

from rlrun.converters.convert.copying import ResourceLimits
from rlrun.converters.families.adapters import group_bytes
from rlrun.converters.families.expected_tensors import Lenience
from rlrun.models.families.table import family_named
from tests.converters.conversions import convert, equal_bits, read_dcp, read_hf, same

FLAVORS = {
    "kimi_k25": "debugmodel",
    "muse_glimmer": "debugmodel",
    "muse_glimmer-vision": "debugmodel_mm",
    "qwen3_5": "debugmodel",
    "qwen3_5_moe": "debugmodel_moe",
}


def make(family, folder, monkeypatch):
    """A random model with half the layers and a small vocabulary; its parameters by torchtitan's names."""
    kind = family.partition("-")[0]
    package = importlib.import_module(f"torchtitan.models.{family_named(kind).torchtitan_package}")
    spec = package.model_registry(FLAVORS[family])
    with torch.device("meta"):
        model = spec.model.build()
    parameters = {name: torch.randn(t.shape).to(t.dtype) for name, t in model.named_parameters()}
    buffers = {name: torch.zeros(t.shape) for name, t in model.state_dict().items() if name not in parameters}
    tensors = spec.state_dict_adapter(spec.model, None).to_hf(parameters | buffers)
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    sizes = {
        "hidden_size": spec.model.dim,
        "num_hidden_layers": len(spec.model.layers),
        "vocab_size": spec.model.vocab_size,
    }
    (folder / "config.json").write_text(
        json.dumps({"model_type": kind, "dtype": "float32", "text_config": sizes})
    )
    return parameters | buffers


USUAL = ("muse_glimmer", "qwen3_5_moe")
"""In `make test`: one dense family, and one with experts."""


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in FLAVORS]
)
def test_there_and_back_is_exact(family, tmp_path, monkeypatch):
    source = tmp_path / "hf"
    parameters = make(family, source, monkeypatch)
    middle = convert(source, "dcp", tmp_path / "dcp")
    assert same(parameters, read_dcp(middle))
    back = convert(middle, "hf", tmp_path / "back", shard_bytes=10_000_000)
    assert same(read_hf(source), read_hf(back))


@pytest.fixture
def source(tmp_path, monkeypatch):
    make("muse_glimmer", tmp_path / "hf", monkeypatch)
    return tmp_path / "hf"


def change(folder, edit):
    tensors = read_hf(folder)
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_missing_and_unknown_tensors_are_named(source, tmp_path):
    name = "model.language_model.layers.3.self_attn.q_proj.weight"
    change(source, lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=r"lacks layers.3.attention.qkv_linear.wq.weight"):
        convert(source, "dcp", tmp_path / "dcp")
    change(source, lambda tensors: tensors.update({name: torch.zeros(3)}))
    with pytest.raises(ValueError, match=r"adapter cannot convert model.language_model.layers.3"):
        convert(source, "dcp", tmp_path / "dcp")


def test_unknown_tensors_are_named_or_left_behind(source, tmp_path):
    known = read_hf(source)
    change(source, lambda tensors: tensors.update({"model.language_model.layers.3.more": torch.zeros(3)}))
    with pytest.raises(ValueError, match=r"has model.language_model.layers.3.more"):
        convert(source, "dcp", tmp_path / "dcp")
    middle = convert(source, "dcp", tmp_path / "dcp", lenience=Lenience(unknown=True))
    assert same(known, read_hf(convert(middle, "hf", tmp_path / "back")))


def test_casting_goes_with_it(source, tmp_path):
    out = read_dcp(convert(source, "dcp", tmp_path / "dcp", dtype=torch.bfloat16))
    whole = read_dcp(convert(source, "dcp", tmp_path / "whole"))
    assert all(equal_bits(tensor, whole[name].bfloat16()) for name, tensor in out.items())


def test_sizes_that_torchtitan_does_not_have(source, tmp_path):
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["hidden_size"] = 77
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"torchtitan has no muse_glimmer of hidden_size.*30B"):
        convert(source, "dcp", tmp_path / "dcp")


def test_memory_for_a_layer_is_asked_for(source, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tests.converters.conversions.EFFORT", ResourceLimits(threads=2, memory=(1 << 30) + 1000)
    )
    with pytest.raises(ValueError, match="--memory must be at least"):
        convert(source, "dcp", tmp_path / "dcp")
    assert group_bytes({}) == 0
