import contextlib
import itertools
import json

import pytest

from rlrun.models.architecture import ClampedGate, Rope
from rlrun.models.config_json import architecture, read_architecture
from rlrun.models.decoder_config import weight_dtype
from rlrun.models.tensor_names import hf_tensors
from tests.tiny_models import CONFIGS, make_tiny_model

QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("tied", [False, True])
def test_names_and_shapes_are_those_of_transformers(family, tied, tmp_path):
    from safetensors.torch import load_file

    folder = make_tiny_model(tmp_path, family, tied=tied)
    stored = {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
    assert {tensor.name: tensor.shape for tensor in hf_tensors(read_architecture(folder))} == stored


SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}


@pytest.mark.parametrize("family", CONFIGS)
def test_an_absent_key_has_the_default_of_transformers(family, tmp_path):
    whole = json.loads((make_tiny_model(tmp_path, family) / "config.json").read_text())
    whole |= {"num_attention_heads": 32, "hidden_size": 320}  # divisible by the defaults of other keys
    if "linear_num_value_heads" in whole:
        whole["linear_num_value_heads"] = 32
    if "index_head_dim" in whole:
        whole["index_head_dim"] = 64  # as wide as the default of the part that is rotated
    compared = []
    for key in whole.keys() - {"model_type", "transformers_version", "dtype"}:
        partial = {name: value for name, value in whole.items() if name != key}
        if key in SIZES:
            with pytest.raises(ValueError, match=f"has no '{key}'"):
                architecture(partial)
            continue
        theirs = CONFIGS[family].from_dict(partial).to_dict() | {"dtype": whole["dtype"]}
        assert architecture(partial) == architecture(theirs), key
        compared.append(key)
    assert {"max_position_embeddings", "rms_norm_eps", "rope_parameters", "num_key_value_heads"} <= {
        *compared
    }


DERIVED = {"head_dim", "num_key_value_heads"}
"""Keys whose null is derived from other keys here for every family, and by transformers for some."""


@pytest.mark.parametrize("family", CONFIGS)
def test_a_null_key_is_read_as_in_transformers_or_refused(family, tmp_path):
    whole = json.loads((make_tiny_model(tmp_path, family) / "config.json").read_text())
    refused = set()
    for key in whole.keys() - DERIVED - {"model_type", "transformers_version", "dtype"}:
        config = whole | {key: None}
        try:
            ours = architecture(config)
        except ValueError as error:
            assert f"{key} is null" in str(error) or "attention_bias = false" in str(error), key
            refused.add(key)
            continue
        with contextlib.suppress(Exception):  # transformers refuses nulls of keys that change nothing here
            theirs = CONFIGS[family].from_dict(config).to_dict() | {"dtype": whole["dtype"]}
            assert ours == architecture(theirs), key
    assert {"rms_norm_eps", "vocab_size", "max_position_embeddings", "hidden_act"} <= refused


def test_a_model_with_absent_keys_loads_with_transformers_weights(tmp_path):
    """A Qwen3 that says nothing of its heads' width has 128."""
    from safetensors.torch import load_file

    folder = make_tiny_model(tmp_path, "qwen3", head_dim=128)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in config.items() if key != "head_dim"}))
    stored = {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
    assert {tensor.name: tensor.shape for tensor in hf_tensors(read_architecture(folder))} == stored


def test_heads_that_are_rotated_in_part_are_refused():
    with pytest.raises(ValueError, match="partial_rotary_factor"):
        architecture(QWEN3 | {"partial_rotary_factor": 0.5})


def test_query_key_value_and_gate_up_are_neighbours():
    names = [tensor.name.split(".")[-2] for tensor in hf_tensors(architecture(QWEN3))]
    text = " ".join(names)
    assert text.count("q_proj k_proj v_proj") == text.count("gate_proj up_proj") == 2


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope_theta": 5e5}, Rope(5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, Rope(1e6)),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}, Rope(1e4, "linear", 2.0)),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            Rope(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
    ],
    ids=["theta", "parameters", "linear", "llama3"],
)
def test_rope_of_both_generations_of_config(keys, rope):
    assert architecture(QWEN3 | keys).rope == rope


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"model_type": "mamba"},
            "model_type 'mamba' is not supported; supported are deepseek_v3, deepseek_v32, glm4_moe,",
        ),
        ({"attention_bias": True}, "attention_bias = true in config.json is not supported for qwen3"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_type 'dynamic' is not supported"),
    ],
    ids=["family", "bias", "window", "activation", "rope"],
)
def test_what_is_not_supported_is_named(keys, message):
    with pytest.raises(ValueError, match=message):
        architecture(QWEN3 | keys)


def test_queries_keys_and_values_of_qwen2_have_biases():
    model = architecture(QWEN3 | {"model_type": "qwen2"})
    assert (model.qk_norm, model.qkv_bias) == (False, True)


def test_deepseek_has_latent_attention_and_grouped_experts():
    config = QWEN3 | {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 4,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 2,
        "moe_intermediate_size": 32,
        "n_group": 4,
        "topk_group": 2,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
    }
    model = architecture(config)
    assert (model.head_dim, model.rotated_dim, model.latent.value_dim, model.latent.query_rank) == (
        20,
        8,
        16,
        None,
    )
    assert (model.experts.layers, model.experts.shared, model.experts.groups) == ({1, 2, 3}, 64, 4)
    assert (model.rope.interleaved, model.rope.attention_factor) == (True, 1.0)


GPT_OSS = QWEN3 | {
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 32,
    "swiglu_limit": 5.0,
}


def test_gpt_oss_sees_a_window_in_every_other_layer():
    model = architecture(GPT_OSS)
    assert (model.windows, model.sinks, model.qkv_bias) == ((32, None), True, True)
    assert (model.experts.intermediate, model.experts.layers) == (96, {0, 1})
    assert model.experts.clamped_gate == ClampedGate(5.0, 1.702)
    named = architecture(GPT_OSS | {"layer_types": ["full_attention", "sliding_attention"]})
    assert [named.window(layer) for layer in range(2)] == [None, 32]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types in config.json must be"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types in config.json must be"),
        ({"attention_bias": False}, "attention_bias = false in config.json is not supported for gpt_oss"),
    ],
    ids=["count", "kind", "bias"],
)
def test_what_is_not_supported_of_gpt_oss(keys, message):
    with pytest.raises(ValueError, match=message):
        architecture(GPT_OSS | keys)


def test_quantised_weights_are_computed_in_bfloat16():
    assert weight_dtype({"quantization_config": {"quant_method": "mxfp4"}}) == "bfloat16"
    assert weight_dtype({"torch_dtype": "float16"}) == "float16"
    assert weight_dtype({}) == "float32"


def test_sparse_layers_follow_step_and_exceptions():
    config = QWEN3 | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 6,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    assert architecture(config).experts.layers == {1, 5}


@pytest.mark.parametrize("family", CONFIGS)
def test_values_of_a_wrong_kind_are_told(family, tmp_path):
    """Every value of a real config, made something else: an error in words, or of no consequence."""
    folder = make_tiny_model(tmp_path, family)
    config = json.loads((folder / "config.json").read_text())
    for key, wrong in itertools.product(config, ("x", None, [], {}, 0, [["x"]])):
        (folder / "config.json").write_text(json.dumps(config | {key: wrong}))
        with contextlib.suppress(ValueError):
            read_architecture(folder)


def test_folders_without_a_usable_config(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="does not hold a JSON object"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="is not a model folder: it has no"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_architecture(tmp_path)
    without = {key: value for key, value in QWEN3.items() if key != "vocab_size"}
    (tmp_path / "config.json").write_text(json.dumps(without))
    with pytest.raises(ValueError, match="has no 'vocab_size'"):
        read_architecture(tmp_path)
