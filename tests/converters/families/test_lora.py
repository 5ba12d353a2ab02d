"""Merging an adapter: the sum, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rlrun.converters.families.lora import MergedFolder
from rlrun.models.config_json import read_architecture
from rlrun.runner.engines.native.engine import loading
from rlrun.runner.engines.native.engine.setup import EngineSetup
from tests.converters.conversions import convert, read_hf
from tests.tiny_models import make_tiny_model

QUERY, UP = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"


@pytest.fixture
def source(tmp_path):
    return make_tiny_model(tmp_path / "hf")


def make_adapter(folder, modules, rank=4, **config):
    """`modules`: `[out, in]` by name."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, (rows, columns) in modules.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(rows, rank, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "bias": "none"} | config
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder, tensors


@pytest.mark.parametrize(
    ("config", "query_scale", "up_scale"),
    [
        ({}, 2.0, 2.0),
        ({"use_rslora": True}, 4.0, 4.0),
        ({"alpha_pattern": {"up_proj": 2}}, 2.0, 0.5),
        ({"alpha_pattern": {r"layers\.0\..*": 4}}, 1.0, 2.0),
    ],
)
def test_the_product_is_added_in_float32(config, query_scale, up_scale, source, tmp_path):
    adapter, tensors = make_adapter(tmp_path / "lora", {QUERY: (64, 64), UP: (96, 64)}, **config)
    before, after = read_hf(source), read_hf(convert(source, "hf", tmp_path / "out", adapter=adapter))
    scales = {QUERY: query_scale, UP: up_scale}
    for name, weight in before.items():
        if (module := name.removesuffix(".weight")) in scales:
            low = tensors[f"base_model.model.{module}.lora_A.weight"]
            high = tensors[f"base_model.model.{module}.lora_B.weight"]
            torch.testing.assert_close(after[name], weight + scales[module] * high @ low)
        else:
            assert torch.equal(after[name], weight)


def test_it_goes_with_every_other_step(source, tmp_path):
    adapter, _ = make_adapter(tmp_path / "lora", {QUERY: (64, 64)})
    merged = convert(source, "hf", tmp_path / "merged", adapter=adapter)
    both = convert(source, "hf", tmp_path / "both", adapter=adapter, dtype=torch.bfloat16)
    expected = read_hf(merged)[f"{QUERY}.weight"].bfloat16()
    assert torch.equal(read_hf(both)[f"{QUERY}.weight"], expected)
    small = convert(source, "hf", tmp_path / "small", adapter=adapter, quantise="fp8-block")
    assert read_hf(small)[f"{QUERY}.weight"].dtype == torch.float8_e4m3fn
    middle = convert(source, "dcp", tmp_path / "dcp", adapter=adapter)
    back = read_hf(convert(middle, "hf", tmp_path / "back"))
    assert torch.equal(back[f"{QUERY}.weight"], read_hf(merged)[f"{QUERY}.weight"])


def test_modules_that_were_trained_whole_replace(source, tmp_path):
    adapter, tensors = make_adapter(tmp_path / "lora", {QUERY: (64, 64)}, modules_to_save=["lm_head"])
    head = torch.randn(320, 64)
    save_file(tensors | {"base_model.model.lm_head.weight": head}, adapter / "adapter_model.safetensors")
    assert torch.equal(
        read_hf(convert(source, "hf", tmp_path / "out", adapter=adapter))["lm_head.weight"], head
    )


@pytest.mark.parametrize(
    ("modules", "config", "message"),
    [
        (
            {"model.layers.9.mlp.up_proj": (96, 64)},
            {},
            "adapts model.layers.9.mlp.up_proj.weight, which the model",
        ),
        ({QUERY: (64, 32)}, {}, "do not fit a weight of shape"),
        ({QUERY: (32, 64)}, {}, "do not fit a weight of shape"),
        ({QUERY: (64, 64)}, {"use_dora": True}, "uses use_dora, which merging does not support"),
        ({QUERY: (64, 64)}, {"bias": "all"}, "trains biases"),
        ({QUERY: (64, 64)}, {"peft_type": "IA3"}, "is not a LoRA adapter"),
    ],
)
def test_what_is_refused(modules, config, message, source, tmp_path):
    adapter, _ = make_adapter(tmp_path / "lora", modules, **config)
    with pytest.raises(ValueError, match=message):
        convert(source, "hf", tmp_path / "out", adapter=adapter)


def test_adapters_of_embeddings_are_refused(source, tmp_path):
    adapter, tensors = make_adapter(tmp_path / "lora", {QUERY: (64, 64)})
    name = "base_model.model.model.embed_tokens.lora_embedding_A"
    save_file(tensors | {name: torch.zeros(4, 320)}, adapter / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="a kind of adapter that is not supported"):
        convert(source, "hf", tmp_path / "out", adapter=adapter)


@pytest.fixture
def base_folder(tmp_path):
    return make_tiny_model(tmp_path / "hf")


@pytest.fixture
def adapter(tmp_path):
    return make_adapter(tmp_path / "lora", {QUERY: (64, 64), UP: (96, 64)})[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_numbers_are_those_of_convert(dtype, base_folder, adapter, tmp_path):
    folder = convert(base_folder, "hf", tmp_path / "stored", dtype=dtype)
    expected = read_hf(convert(folder, "hf", tmp_path / "merged", adapter=adapter))
    with MergedFolder(folder, read_architecture(folder), adapter) as merged:
        assert merged.adapted == {f"{QUERY}.weight", f"{UP}.weight"}
        for name, tensor in expected.items():
            assert torch.equal(merged.read(name), tensor)


def test_a_native_engine_loads_the_merged_model(base_folder, adapter, tmp_path, monkeypatch):
    loaded, fuse = {}, loading.fuse

    def note(named, model):
        loaded.update({name: tensor.clone() for name, tensor in named.items()})
        return fuse(named, model)

    monkeypatch.setattr(loading, "fuse", note)
    settings = {
        "dtype": "float32",
        "max_running": 2,
        "max_cache_tokens": 256,
        "max_length": 64,
        "device": "cpu",
    }
    loading.load(EngineSetup(str(base_folder), str(adapter), **settings))
    expected = read_hf(convert(base_folder, "hf", tmp_path / "merged", adapter=adapter))
    assert loaded.keys() <= expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.items())
