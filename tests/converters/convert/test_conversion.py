"""Conversions of whole folders, read back by the libraries that others read them with."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from rlrun.converters.convert.conversion import Options, plan_conversion
from rlrun.converters.families.expected_tensors import Lenience
from rlrun.converters.folders.locate import find_checkpoint
from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from tests.converters.conversions import EFFORT, convert, ignore, read_dcp, read_hf, same
from tests.pictures import write_processor
from tests.tiny_models import CONFIGS, make_tiny_model
from tests.tiny_vlms import IMAGE, VLMS, make_tiny_vlm

SMALL = 40_000
"""A shard size that makes several files of a tiny model."""


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", CONFIGS)
def test_there_and_back_is_exact(family, tied, tmp_path):
    source = make_tiny_model(tmp_path / "hf", family, tied=tied, dtype=torch.bfloat16)
    middle = convert(source, "dcp", tmp_path / "dcp", shard_bytes=SMALL)
    back = convert(middle, "hf", tmp_path / "back", shard_bytes=SMALL)
    assert same(read_hf(source), read_hf(back))
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja", "config.json"):
        assert (back / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_vision_tower_goes_there_and_back_exactly(family, tmp_path):
    source = write_processor(make_tiny_vlm(tmp_path / "hf", family), IMAGE)
    middle = convert(source, "dcp", tmp_path / "dcp", shard_bytes=SMALL)
    back = convert(middle, "hf", tmp_path / "back", shard_bytes=SMALL)
    stored = read_hf(source)
    assert sum("visual." in name for name in stored) > 30
    assert same(stored, read_hf(back))
    for name in ("preprocessor_config.json", "tokenizer.json", "config.json"):
        assert (back / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("family", VLMS)
def test_all_tables_of_a_multimodal_config_name_the_precision_of_a_cast(family, tmp_path):
    source = make_tiny_vlm(tmp_path / "hf", family)
    cast = convert(source, "hf", tmp_path / "cast", dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in read_hf(cast).values()} == {torch.bfloat16}
    assert read_architecture(cast).dtype == "bfloat16"
    config = json.loads((cast / "config.json").read_text())
    assert (config["dtype"], config["text_config"]["dtype"]) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("family", "tied"),
    [*itertools.product(["llama", "qwen3", "qwen3_moe"], [False, True]), ("deepseek_v3", False)],
)
def test_torchtitan_gives_the_same_parameters(family, tied, tmp_path):
    source = make_tiny_model(tmp_path / "hf", family, tied=tied)
    read = read_dcp(convert(source, "dcp", tmp_path / "dcp"))
    assert same(torchtitan_parameters(source), read)


def torchtitan_parameters(source):
    """By torchtitan's adapter, which looks at a few sizes of its config."""
    from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter
    from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

    adapters = {"llama": Llama3StateDictAdapter, "deepseek_v3": DeepSeekV3StateDictAdapter}
    model = read_architecture(source)
    attention = SimpleNamespace(n_heads=model.heads, n_kv_heads=model.kv_heads, head_dim=model.head_dim)
    attention.q_lora_rank = (model.latent.query_rank or 0) if model.latent else 0
    moe = SimpleNamespace(num_experts=model.experts.count) if model.experts else None
    layers = [SimpleNamespace(attention=attention, moe=moe)] * model.layers
    config = SimpleNamespace(dim=model.hidden, enable_weight_tying=model.tied, layers=layers)
    adapter = adapters.get(model.family, Qwen3StateDictAdapter)(config, None)
    adapter._validate_hf_rope_config = ignore
    return adapter.from_hf(read_hf(source))


def test_gpt_oss_has_torchtitan_s_parameters(tmp_path):
    """By its model: its adapter leaves the experts out, whose names it has not kept up with."""
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.gpt_oss import GptOssModel, _build_gptoss_layers

    source = make_tiny_model(tmp_path / "hf", "gpt_oss")
    ours = read_dcp(convert(source, "dcp", tmp_path / "dcp"))
    model = read_architecture(source)
    layers = _build_gptoss_layers(
        dim=model.hidden,
        n_layers=model.layers,
        hidden_dim=model.experts.intermediate,
        num_experts=model.experts.count,
        top_k=model.experts.per_token,
        load_balance_coeff=None,
        fuse_qkv=False,
        moe_comm_backend="standard",
        rope=CosSinRoPE.Config(dim=64, max_seq_len=64),
    )
    for layer in layers:  # the number of heads is no argument
        layer.attention.n_heads, layer.attention.n_kv_heads = model.heads, model.kv_heads
    theirs = GptOssModel.Config(
        vocab_size=model.vocab,
        dim=model.hidden,
        layers=layers,
        tok_embeddings=Embedding.Config(num_embeddings=model.vocab, embedding_dim=model.hidden),
        norm=RMSNorm.Config(normalized_shape=model.hidden),
        lm_head=Linear.Config(in_features=model.hidden, out_features=model.vocab),
    )
    with torch.device("meta"):
        parameters = dict(theirs.build().named_parameters())
    assert ours.keys() == parameters.keys()
    experts = [name for name in ours if "inner_experts" in name]
    assert len(experts) == 8
    assert all(ours[name].shape == parameters[name].shape for name in experts)


def test_several_files_have_an_index_that_transformers_reads(tmp_path):
    import transformers

    source = make_tiny_model(tmp_path / "hf")
    out = convert(source, "hf", tmp_path / "out", shard_bytes=SMALL)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = {path.name for path in out.glob("*.safetensors")}
    assert files == set(index["weight_map"].values()) and len(files) > 2
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in read_hf(source).values())
    read = transformers.AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert same(read_hf(source), dict(read))


@pytest.mark.parametrize("family", CONFIGS)
def test_transformers_computes_the_same_with_what_came_back(family, tmp_path):
    import transformers

    source = make_tiny_model(tmp_path / "hf", family, tied=family == "qwen3")
    back = convert(convert(source, "dcp", tmp_path / "dcp"), "hf", tmp_path / "back", shard_bytes=SMALL)
    tokens = torch.arange(60).view(2, 30)
    ours, theirs = (
        transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits.log_softmax(-1)
        for folder in (source, back)
    )
    assert torch.equal(ours, theirs)
    assert transformers.AutoTokenizer.from_pretrained(back).chat_template


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_casting_rounds_as_torch_does(dtype, tmp_path):
    source = make_tiny_model(tmp_path / "hf", scale=1.0)
    out = convert(source, "hf", tmp_path / "out", dtype=dtype)
    assert same({name: tensor.to(dtype) for name, tensor in read_hf(source).items()}, read_hf(out))
    assert read_architecture(out).dtype == str(dtype).removeprefix("torch.")


def test_a_folder_of_several_precisions_keeps_them(tmp_path):
    source = make_tiny_model(tmp_path / "hf", dtype=torch.bfloat16)
    tensors = read_hf(source)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    save_file(tensors, source / "model.safetensors")
    back = convert(convert(source, "dcp", tmp_path / "dcp"), "hf", tmp_path / "back")
    assert read_hf(back)["model.norm.weight"].dtype == torch.bfloat16, "the config's, after training"
    assert same(tensors, read_hf(convert(source, "hf", tmp_path / "out")))


def test_other_families_are_resharded_too(tmp_path):
    source = make_tiny_model(tmp_path / "hf")
    config = json.loads((source / "config.json").read_text()) | {"model_type": "novel"}
    (source / "config.json").write_text(json.dumps(config))
    assert same(read_hf(source), read_hf(convert(source, "hf", tmp_path / "out", shard_bytes=SMALL)))
    with pytest.raises(ValueError, match="model_type 'novel' is not supported; supported are"):
        convert(source, "dcp", tmp_path / "dcp")


def test_tying_and_untying(tmp_path):
    tied = make_tiny_model(tmp_path / "tied", tied=True)
    untied = convert(tied, "hf", tmp_path / "untied", tied=False)
    head = read_hf(untied)["lm_head.weight"]
    assert torch.equal(head, read_hf(tied)["model.embed_tokens.weight"])
    assert not read_architecture(untied).tied
    again = convert(untied, "hf", tmp_path / "again", tied=True)
    assert same(read_hf(tied), read_hf(again)) and read_architecture(again).tied
    with pytest.raises(ValueError, match="differ, so they cannot be tied"):
        convert(make_tiny_model(tmp_path / "two"), "hf", tmp_path / "out", tied=True)


def without(folder, name):
    tensors = read_hf(folder)
    tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_missing_tensors_are_named_or_allowed(tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"
    source = without(make_tiny_model(tmp_path / "hf"), name)
    for target in ("dcp", "hf"):
        with pytest.raises(ValueError, match=f"lacks {name}, which its config.json requires"):
            convert(source, target, tmp_path / "out")
    lenient = {"lenience": Lenience(missing=True)}
    middle = convert(source, "dcp", tmp_path / "dcp", **lenient)
    assert "layers.1.feed_forward.w3.weight" not in read_dcp(middle)
    with pytest.raises(ValueError, match=r"lacks layers.1.feed_forward.w3.weight"):
        convert(middle, "hf", tmp_path / "back")
    assert same(read_hf(source), read_hf(convert(middle, "hf", tmp_path / "back", **lenient)))


def test_unknown_tensors_are_named_or_left_behind(tmp_path):
    source = make_tiny_model(tmp_path / "hf")
    known = read_hf(source)
    save_file(known | {"visual.weight": torch.zeros(3)}, source / "model.safetensors")
    with pytest.raises(ValueError, match=r"has visual.weight, which its config.json does not describe"):
        convert(source, "hf", tmp_path / "out")
    lenient = {"lenience": Lenience(unknown=True)}
    assert same(known, read_hf(convert(source, "hf", tmp_path / "out", **lenient)))
    middle = convert(source, "dcp", tmp_path / "dcp", **lenient)
    assert same(known, read_hf(convert(middle, "hf", tmp_path / "back")))


def test_memory_that_is_too_little_is_said_before(tmp_path):
    source = make_tiny_model(tmp_path / "hf", "llama")
    conversion = plan_conversion(find_checkpoint(source), "dcp", Options(dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"--memory must be at least 1.0GiB with 2 threads"):
        conversion.write(tmp_path / "out", type(EFFORT)(threads=2, memory=1 << 29), ignore, None)
    assert not (tmp_path / "out").exists()


def test_a_tensor_need_not_fit_into_memory(tmp_path, monkeypatch):
    from rlrun.converters.convert import copying

    monkeypatch.setattr(copying, "_BLOCK_BYTES", 1024)
    source = make_tiny_model(tmp_path / "hf", "llama")
    middle = convert(source, "dcp", tmp_path / "dcp", dtype=torch.bfloat16)
    back = convert(middle, "hf", tmp_path / "back", dtype=torch.bfloat16)
    assert same({name: tensor.bfloat16() for name, tensor in read_hf(source).items()}, read_hf(back))


def test_every_parameter_is_written_once(tmp_path):
    source = make_tiny_model(tmp_path / "hf", "qwen3_moe")
    names = {tensor.parameter for tensor in hf_tensors(read_architecture(source))}
    assert read_dcp(convert(source, "dcp", tmp_path / "dcp")).keys() == names
