"""Checkpoints of Megatron-Core, written with its names here, and by itself in a development test."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoConfig, AutoModelForCausalLM

from rlrun.runner.host.network import free_port
from tests.converters.conversions import convert, read_hf, same
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE

WRITER = Path(__file__).with_name("megatron_writer.py")
PADDED = 32
"""Rows behind the vocabulary."""
LATENT = {
    "q_a_proj": "linear_q_down_proj",
    "q_b_proj": "linear_q_up_proj",
    "kv_a_proj_with_mqa": "linear_kv_down_proj",
    "kv_b_proj": "linear_kv_up_proj",
}


def megatron_tensors(tensors, config, *, fused_norms):
    """The tensors as Megatron names and orders them, one layer and one expert at a time."""
    padding = torch.full((PADDED, config.hidden_size), 7.0)
    found = {
        "embedding.word_embeddings.weight": torch.cat([tensors["model.embed_tokens.weight"], padding]),
        "decoder.final_layernorm.weight": tensors["model.norm.weight"],
    }
    if "lm_head.weight" in tensors:
        found["output_layer.weight"] = torch.cat([tensors["lm_head.weight"], padding])
    for layer in range(config.num_hidden_layers):
        start = f"model.layers.{layer}."
        own = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
        block = attention(own, config, fused_norms) | feed_forward(own, fused_norms)
        found |= {f"decoder.layers.{layer}.{name}": value for name, value in block.items()}
    return found


def attention(own, config, fused_norms):
    take = lambda name: own[f"self_attn.{name}"]  # noqa: E731
    found = {"self_attention.linear_proj.weight": take("o_proj.weight")}
    if "self_attn.kv_b_proj.weight" in own:
        for name, megatron in LATENT.items():
            found[f"self_attention.{megatron}.weight"] = take(f"{name}.weight")
        norms = ("linear_q_up_proj.layer_norm_weight", "linear_kv_up_proj.layer_norm_weight")
        for name, megatron in zip(("q_a_layernorm", "kv_a_layernorm"), norms, strict=True):
            found[f"self_attention.{megatron}"] = take(f"{name}.weight")
        return found | {"input_layernorm.weight": own["input_layernorm.weight"]}
    before = "self_attention.linear_qkv.layer_norm_weight" if fused_norms else "input_layernorm.weight"
    found[before] = own["input_layernorm.weight"]
    groups = config.num_key_value_heads
    for kind in ("weight", "bias"):
        if f"self_attn.q_proj.{kind}" in own:
            parts = [take(f"{name}_proj.{kind}").unflatten(0, (groups, -1)) for name in "qkv"]
            found[f"self_attention.linear_qkv.{kind}"] = torch.cat(parts, 1).flatten(0, 1)
    for name in "qk":
        if f"self_attn.{name}_norm.weight" in own:
            found[f"self_attention.{name}_layernorm.weight"] = take(f"{name}_norm.weight")
    return found


def feed_forward(own, fused_norms):
    norm, found = own["post_attention_layernorm.weight"], {}
    dense = "mlp.gate_proj.weight" in own
    found["mlp.linear_fc1.layer_norm_weight" if dense and fused_norms else "pre_mlp_layernorm.weight"] = norm
    for name, value in own.items():
        megatron = name.replace("gate_proj", "linear_fc1").replace("down_proj", "linear_fc2")
        megatron = megatron.replace("mlp.experts.", "mlp.experts.experts.")
        megatron = megatron.replace("mlp.gate.e_score_correction_bias", "mlp.router.expert_bias")
        megatron = megatron.replace("mlp.gate.weight", "mlp.router.weight")
        if "gate_proj" in name:
            found[megatron] = torch.cat([value, own[name.replace("gate_proj", "up_proj")]])
        elif name.startswith("mlp.") and "up_proj" not in name:
            found[megatron] = value
    return found


def stacked(tensors, pattern, name):
    """The tensors that match a pattern with a number, under one name, stacked by their number."""
    members = {}
    for key, value in tensors.items():
        if (match := re.fullmatch(pattern, key)) is not None:
            members.setdefault(name.format(*match.groups()), {})[int(match["number"])] = value
    others = {key: value for key, value in tensors.items() if not re.fullmatch(pattern, key)}
    return others | {
        key: torch.stack([found[number] for number in sorted(found)]) for key, found in members.items()
    }


def save(tensors, folder):
    state = {**tensors, "rng_state": torch.zeros(4), "optimizer.step": torch.zeros(())}
    dcp.save(state, checkpoint_id=folder, no_dist=True)


@pytest.mark.parametrize("layers_stacked", [True, False], ids=["stacked", "named"])
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("qwen3", {}),
        ("qwen2", {"tied": True}),
        ("qwen3_moe", {}),
        ("glm4_moe", {"num_nextn_predict_layers": 0}),
        ("deepseek_v3", {}),
    ],
)
def test_a_checkpoint_is_the_model_that_it_was_written_from(tmp_path, family, fields, layers_stacked):
    source = make_tiny_model(tmp_path / "hf", family, **fields)
    tensors = read_hf(source)
    config = AutoConfig.from_pretrained(source)
    written = megatron_tensors(tensors, config, fused_norms=layers_stacked)
    expert = r"(.+\.mlp\.experts\.experts\.)(?P<number>\d+)\.(.+)"
    if family == "qwen3_moe" and layers_stacked:
        written = stacked(written, expert, "{0}{2}")
    if layers_stacked and family not in ("glm4_moe", "deepseek_v3"):  # their first layers are dense
        written = stacked(written, r"decoder\.layers\.(?P<number>\d+)\.(.+)", "decoder.layers.{1}")
    save(written, tmp_path / "iter_0000007")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    assert same(read_hf(convert(tmp_path, "hf", tmp_path / "out", model=source)), tensors)


def test_what_is_missing_unknown_or_of_another_layer_is_named(tmp_path):
    source = make_tiny_model(tmp_path / "hf", "qwen3")
    config = AutoConfig.from_pretrained(source)
    written = megatron_tensors(read_hf(source), config, fused_norms=False)
    lacking = {name: value for name, value in written.items() if "1.self_attention.linear_qkv" not in name}
    save(lacking, tmp_path / "lacking")
    with pytest.raises(ValueError, match=r"lacks model\.layers\.1\.self_attn\.k_proj\.weight"):
        convert(tmp_path / "lacking", "hf", tmp_path / "out", model=source)
    save({**written, "decoder.layers.0.adapter.weight": torch.zeros(2)}, tmp_path / "unknown")
    with pytest.raises(ValueError, match=r"has decoder\.layers\.0\.adapter\.weight, which its config"):
        convert(tmp_path / "unknown", "hf", tmp_path / "out", model=source)
    narrow = {**written, "decoder.layers.0.mlp.linear_fc1.weight": torch.zeros(6, 64)}
    save(narrow, tmp_path / "narrow")
    with pytest.raises(ValueError, match=r"(gate|up)_proj\.weight in .* has shape \(3, 64\), but its config"):
        convert(tmp_path / "narrow", "hf", tmp_path / "out", model=source)
    recurrent = make_tiny_model(tmp_path / "recurrent", "qwen3_next")
    save(written, tmp_path / "other")
    with pytest.raises(ValueError, match="it is not known how it holds Gated DeltaNet"):
        convert(tmp_path / "other", "hf", tmp_path / "out", model=recurrent)


QKV, GATED = "decoder.layers.0.self_attention.linear_qkv.weight", "decoder.layers.0.mlp.linear_fc1.weight"
ROWS = "config.json describes 2 groups of 2 q, k and v of 16 rows each"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({QKV: torch.zeros(8, 64)}, rf"linear_qkv.* it has 8 rows, and {ROWS}", id="short"),
        pytest.param({QKV: torch.zeros(192, 64)}, rf"it has 192 rows, and {ROWS}", id="a group too many"),
        pytest.param({QKV: torch.zeros(131, 64)}, rf"it has 131 rows, and {ROWS}", id="not divisible"),
        pytest.param({QKV: torch.zeros(())}, r"has shape \(\), but its config", id="qkv without rows"),
        pytest.param({GATED: torch.zeros(193, 64)}, "its 193 rows are not a gate and as many", id="odd"),
        pytest.param({GATED: torch.zeros(())}, r"has shape \(\), but its config", id="gate without rows"),
        pytest.param({GATED: torch.zeros(192, 64).to(torch.float8_e4m3fn)}, "scales are not known", id="fp8"),
        pytest.param(
            {"embedding.word_embeddings.weight": torch.zeros(())}, r"has shape \(\), but its", id="embedding"
        ),
    ],
)
def test_a_tensor_that_does_not_hold_whole_parts_is_named(tmp_path, change, message):
    source = make_tiny_model(tmp_path / "hf", "qwen3")
    tensors = megatron_tensors(read_hf(source), AutoConfig.from_pretrained(source), fused_norms=False)
    save(tensors | change, tmp_path / "written")
    with pytest.raises(ValueError, match=message):
        convert(tmp_path / "written", "hf", tmp_path / "out", model=source)


@pytest.mark.parametrize(
    ("family", "pattern", "name", "message"),
    [
        (
            "qwen3",
            r"decoder\.layers\.(?P<number>\d+)\.(.+)",
            "decoder.layers.{1}",
            "4 layers, .* describes 2",
        ),
        (
            "qwen3_moe",
            r"(.+\.mlp\.experts\.experts\.)(?P<number>\d+)\.(.+)",
            "{0}{2}",
            "8 experts, and its config.json describes 4",
        ),
    ],
)
def test_a_stack_of_a_larger_model_is_not_cut(tmp_path, family, pattern, name, message):
    source = make_tiny_model(tmp_path / "hf", family)
    tensors = megatron_tensors(read_hf(source), AutoConfig.from_pretrained(source), fused_norms=False)
    written = stacked(tensors, pattern, name)
    larger = {key: torch.cat([tensor] * (1 if key in tensors else 2)) for key, tensor in written.items()}
    save(larger, tmp_path / "written")
    with pytest.raises(ValueError, match=message):
        convert(tmp_path / "written", "hf", tmp_path / "out", model=source)


def test_the_state_of_megatron_s_optimizer_is_not_read(tmp_path):
    source = make_tiny_model(tmp_path / "hf", "qwen3")
    save(
        megatron_tensors(read_hf(source), AutoConfig.from_pretrained(source), fused_norms=False),
        tmp_path / "written",
    )
    with pytest.raises(ValueError, match="of which only the weights are read: remove --optimizer"):
        convert(tmp_path / "written", "hf", tmp_path / "out", model=source, optimizer=True)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None,
    reason="megatron-core is not installed: pip install --no-deps megatron-core==0.16.1",
)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_megatron_s_own_checkpoint_computes_what_megatron_computes(tmp_path, family):
    model = make_tiny_model(tmp_path / "hf", family, vocab=320, num_experts=4, num_experts_per_tok=2)
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(
        [sys.executable, WRITER, model, tmp_path / "written", tmp_path / "logits.pt"],
        env=os.environ | ranks | {"MASTER_PORT": str(free_port("127.0.0.1"))},
        check=True,
        timeout=PATIENCE,
    )
    out = convert(tmp_path / "written", "hf", tmp_path / "out", model=model)
    ours = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager").eval()
    expected = torch.load(tmp_path / "logits.pt", weights_only=True)
    with torch.no_grad():
        logits = ours(expected["tokens"]).logits
    assert torch.allclose(logits, expected["logits"], atol=1e-5)
    assert logits.std() > 0.05
