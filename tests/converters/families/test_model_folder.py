import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlrun.converters.families import model_folder as safetensors_folder
from rlrun.converters.families.model_folder import WeightFolder, write_folder
from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from tests.tiny_models import make_tiny_model


@pytest.fixture
def folder(tmp_path):
    return make_tiny_model(tmp_path / "model")


def change(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def refused(folder, message):
    with pytest.raises(ValueError, match=message):
        WeightFolder(folder, read_architecture(folder))


def test_missing_tensors_are_named(folder):
    change(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    refused(folder, "lacks model.layers.1.mlp.up_proj.weight")


def test_unknown_tensors_are_named(folder):
    change(folder, lambda tensors: tensors.update({"model.layers.7.bias": torch.zeros(3)}))
    refused(folder, "has model.layers.7.bias, which its config.json does not describe")


def test_shapes_must_be_those_of_the_config(folder):
    change(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}))
    refused(folder, r"model.norm.weight in .* has shape \(3,\), but its config.json requires \(64,\)")


def test_stored_frequencies_and_a_tied_head_are_ignored(tmp_path):
    folder = make_tiny_model(tmp_path / "tied", tied=True)
    extra = {
        "lm_head.weight": torch.zeros(2),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
    }
    change(folder, lambda tensors: tensors.update(extra))
    WeightFolder(folder, read_architecture(folder)).__exit__(None, None, None)


def test_folders_without_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "give a folder with safetensors, or set model.random_init")


def test_a_broken_file_is_named(folder):
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    refused(folder, "model.safetensors cannot be read")


def test_missing_shards_are_named(folder):
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "lacks model-00002-of-00002.safetensors")


@pytest.mark.parametrize("shard_bytes", [10**9, 40_000], ids=["one file", "shards"])
def test_what_is_written_is_what_transformers_reads(folder, tmp_path, monkeypatch, shard_bytes):
    import transformers

    monkeypatch.setattr(safetensors_folder, "SHARD_BYTES", shard_bytes)
    model = read_architecture(folder)
    stored = load_file(folder / "model.safetensors")
    shapes = {tensor.name: tensor.shape for tensor in hf_tensors(model)}
    out = tmp_path / "out"
    tensors = ((name, stored[name]) for name in shapes)
    write_folder(out, folder, model, tensors, shapes, dtype=torch.float32)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert (len(files) > 1) == (shard_bytes < 10**6)
    read = transformers.AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(read[name], tensor) for name, tensor in stored.items())
    with WeightFolder(out, model) as weights:
        assert all(torch.equal(weights.read(name), stored[name]) for name in stored)
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
