import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlrun.converters.families import model_folder as safetensors_folder
from rlrun.converters.families.model_folder import WeightFolder, write_folder, write_safetensors
from rlrun.converters.tensors.safetensors_format import TensorInfo
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


VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}


@pytest.fixture
def multimodal(tmp_path):
    """A checkpoint of Qwen3.5 with a vision tower and a layer that predicts further tokens, in both forms:
    with a tensor for each matrix of each expert, and with the experts of a layer together.
    """
    import transformers

    text = json.loads((make_tiny_model(tmp_path / "text", "qwen3_5_moe_text") / "config.json").read_text())
    config = transformers.Qwen3_5MoeConfig(text_config=text, vision_config=VISION, dtype=torch.float32)
    model = transformers.Qwen3_5MoeForConditionalGeneration(config)
    model.save_pretrained(tmp_path / "apart")
    apart = load_file(tmp_path / "apart" / "model.safetensors") | {"mtp.fc.weight": torch.randn(3, 5)}
    together = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    (tmp_path / "together").mkdir()
    (tmp_path / "together" / "config.json").write_bytes((tmp_path / "apart" / "config.json").read_bytes())
    for name, tensors in (("apart", apart), ("together", together | {"mtp.fc.weight": torch.ones(3, 5)})):
        save_file(tensors, tmp_path / name / "model.safetensors")
    return tmp_path


def test_experts_that_are_stored_together_are_read_one_by_one(multimodal):
    model = read_architecture(multimodal / "together")
    assert "experts.gate_up_proj" in "".join(load_file(multimodal / "together" / "model.safetensors"))
    with (
        WeightFolder(multimodal / "together", model) as together,
        WeightFolder(multimodal / "apart", model) as apart,
    ):
        for tensor in hf_tensors(model):
            assert torch.equal(together.read(tensor.name), apart.read(tensor.name))


def test_vision_towers_and_predicted_tokens_are_exported_as_they_were(multimodal, tmp_path):
    folder = multimodal / "apart"
    model, stored = read_architecture(folder), load_file(folder / "model.safetensors")
    shapes = {tensor.name: tensor.shape for tensor in hf_tensors(model)}
    assert "model.language_model.embed_tokens.weight" in shapes
    trained = ((name, stored[name] + 1) for name in shapes)
    write_folder(tmp_path / "out", folder, model, trained, shapes, dtype=torch.bfloat16)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == stored.keys()
    for name, tensor in stored.items():
        expected = tensor + 1 if name in shapes else tensor
        assert torch.equal(written[name], expected.bfloat16()), name
    assert sum(name not in shapes for name in stored) > 10


def test_routers_of_predicting_layers_choose_the_same_experts_after_an_export(tmp_path):
    """The bias by which a router chooses experts is float32 in published checkpoints, whatever the others."""
    folder = make_tiny_model(tmp_path / "model", "glm4_moe")
    model, policy = read_architecture(folder), load_file(folder / "model.safetensors")
    name = f"model.layers.{model.layers}.mlp.gate.e_score_correction_bias"
    bias = torch.linspace(0.1, 0.2, 8)
    save_file(policy | {name: bias}, folder / "model.safetensors")
    shapes = {tensor.name: tensor.shape for tensor in hf_tensors(model)}
    trained = ((name, policy[name]) for name in shapes)
    write_folder(tmp_path / "out", folder, model, trained, shapes, dtype=torch.bfloat16)
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")[name], bias)


def test_scalars_are_written(tmp_path):
    """Apertus has scalars among its parameters."""
    tensors = {"alpha": torch.tensor(0.5), "beta": torch.tensor([1.0, 2.0])}
    described = {name: TensorInfo(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    write_safetensors(tmp_path / "model.safetensors", described, iter(tensors.items()))
    read = load_file(tmp_path / "model.safetensors")
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
