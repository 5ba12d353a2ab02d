"""The native engine's log-probs and greedy tokens against transformers, in float32."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlrun.runner.engines.native.engine import loading
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.requests import SampleInProgress
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.model import native_ops
from tests.runner.engines.engine_cases import new_sample, random_prompts, run
from tests.tiny_models import make_tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
NO_ZEROS: dict[str, Any] = {"pad_token_id": None}
"""The embedding of a padding token is zero. An indexer gives all keys the same score for it; torch chooses
other keys of a longer sequence."""
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"family": "qwen3"},
    "qwen3-tied-bias": {"family": "qwen3", "tied": True, "attention_bias": True},
    "qwen3-one-kv-head-wide": {"family": "qwen3", "num_key_value_heads": 1, "head_dim": 80},
    "qwen3-odd-sizes": {"family": "qwen3", "hidden_size": 52, "intermediate_size": 75, "vocab": 333},
    "llama": {"family": "llama"},
    "llama-biases-no-gqa": {
        "family": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 4,
    },
    "llama-head-dim-24": {"family": "llama", "head_dim": 24, "tied": True},
    "llama3-rope": {"family": "llama", "rope_parameters": LLAMA3},
    "gated-delta-net": {"family": "qwen3_5_text", "scale": 0.05, "tied": True, "num_hidden_layers": 5},
    "qwen3-moe": {"family": "qwen3_moe", "num_experts": 8, "mlp_only_layers": [0]},
    "qwen3-next": {"family": "qwen3_next", "scale": 0.05, "mlp_only_layers": [1]},
    "qwen3.5-moe": {"family": "qwen3_5_moe_text", "scale": 0.05, "num_experts": 8},
    "qwen2-yarn": {"family": "qwen2", "rope_parameters": YARN},
    "mimo": {"family": "mimo"},
    "glm": {"family": "glm4_moe"},
    "minimax": {"family": "minimax_m2"},
    "deepseek": {"family": "deepseek_v3"},
    "kimi": {"family": "kimi_k2", "q_lora_rank": None},
    "glm-flash": {"family": "glm4_moe_lite"},
    "deepseek-v3.2": {"family": "deepseek_v32", **NO_ZEROS},
    "glm-5": {"family": "glm_moe_dsa", "num_hidden_layers": 4, **NO_ZEROS},
    "linear-rope": {
        "family": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    },
}


@pytest.mark.parametrize("name", ["qwen3", "qwen3-odd-sizes", "gated-delta-net"])
def test_products_of_onednn_and_in_panels_agree(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native_ops.load() or not native_ops.packs(torch.float32):
        pytest.skip("this machine computes with oneDNN's products alone")
    folder = make_tiny_model(tmp_path, **MODELS[name])
    answers = []
    for panels in (True, False):
        monkeypatch.setattr(native_ops, "packs", lambda dtype, panels=panels: panels)
        scheduler = load(EngineSetup(str(folder), dtype="float32", max_running=7)).scheduler
        samples = [new_sample(prompt, seed=1, max_new_tokens=9) for prompt in random_prompts(4)]
        run(scheduler, samples)
        assert (scheduler.model.weights.layers[0].output.dim() == 3) is panels
        answers.append(samples)
    for ours, theirs in zip(*answers, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=2e-5)


IN_PLAIN_TORCH = ("qwen3-one-kv-head-wide", "qwen3-moe", "gated-delta-net", "deepseek")
"""Models with each kind of layer. `make test` computes these in each way, and the others with the kernels."""
WAYS = [
    pytest.param(name, way, marks=() if way == "kernels" or name in IN_PLAIN_TORCH else pytest.mark.slow)
    for name in MODELS
    for way in ("kernels", "torch", "flash")
]


@pytest.mark.parametrize(("name", "operations"), WAYS, indirect=["operations"])
def test_log_probs_and_greedy_tokens_equal_transformers(name: str, operations: str, tmp_path: Path) -> None:
    generate_like_transformers(make_tiny_model(tmp_path, **MODELS[name]))


def generate_like_transformers(folder: Path) -> None:
    """Checks greedy and drawn samples of the model in a folder."""
    scheduler = load(EngineSetup(str(folder), dtype="float32", max_running=7)).scheduler
    samples = [
        new_sample(
            prompt, seed=k, temperature=(0.0, 0.7, 1.0)[k], max_new_tokens=(40, 5, 17)[k], ignore_eos=True
        )
        for prompt in random_prompts(4)
        for k in range(3)
    ]
    run(scheduler, samples)
    assert_like_transformers(samples, folder)


def assert_like_transformers(
    samples: Sequence[SampleInProgress], folder: Path, auto_class: Any = AutoModelForCausalLM
) -> None:
    """Checks the log-probs of finished samples, and the tokens of greedy ones."""
    peer = auto_class.from_pretrained(folder, dtype=torch.float32)
    for finished in samples:
        logits = peer_logits(peer, finished)
        expected = (logits / (finished.params.temperature or 1.0)).log_softmax(-1)
        chosen = expected.gather(1, torch.from_numpy(finished.tokens).long()[:, None])[:, 0]
        np.testing.assert_allclose(finished.log_probs, chosen.numpy(), atol=5e-5, rtol=1e-5)
        assert len(finished.tokens) == finished.params.max_new_tokens
        if finished.params.temperature == 0:
            assert finished.tokens.tolist() == logits.argmax(-1).tolist()


def test_bfloat16_agrees_with_float32_within_its_precision(operations: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, scale=0.05)
    scheduler = load(EngineSetup(str(folder), dtype="bfloat16")).scheduler
    samples = run(scheduler, [new_sample(prompt, max_new_tokens=30) for prompt in random_prompts(6)])
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for finished in samples:
        expected = peer_logits(peer, finished).log_softmax(-1)
        chosen = expected.gather(1, torch.from_numpy(finished.tokens).long()[:, None])[:, 0]
        np.testing.assert_allclose(finished.log_probs, chosen.numpy(), atol=0.05)


def peer_logits(peer: torch.nn.Module, finished: SampleInProgress) -> torch.Tensor:
    """Transformers' logits `[R, V]` for the tokens a sample made."""
    tokens = torch.from_numpy(np.concatenate([finished.prompt, finished.tokens])).long()
    with torch.no_grad():
        logits: torch.Tensor = peer(tokens[None]).logits[0]
    return logits[len(finished.prompt) - 1 : -1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_gives_the_log_probs_of_transformers(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, **MODELS[name])
    scheduler = load(EngineSetup(str(folder), dtype="float32", device="cuda")).scheduler
    samples = run(
        scheduler, [new_sample(prompt, k, top_p=0.9) for prompt in random_prompts(4) for k in range(3)]
    )
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for finished in samples:
        expected = peer_logits(peer, finished).log_softmax(-1)
        chosen = expected.gather(1, torch.from_numpy(finished.tokens).long()[:, None])[:, 0]
        np.testing.assert_allclose(finished.log_probs, chosen.numpy(), atol=1e-3)


def test_a_wide_head_multiplies_its_bfloat16_weights_in_float32(operations: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, tied=True)
    setup = EngineSetup(str(folder), dtype="bfloat16", head_dtype="float32")
    model = load(setup).scheduler.model
    states = (9 * torch.randn(5, 64, generator=torch.Generator().manual_seed(0))).bfloat16()
    logits = model.logits(states)
    expected = states.float() @ model.weights.embedding.float().t()
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)
    narrow = load(EngineSetup(str(folder), dtype="bfloat16")).scheduler.model.logits(states)
    assert (narrow.float() - expected).abs().max() > 0.1
    samples = run(
        load(setup).scheduler, [new_sample(prompt, max_new_tokens=5) for prompt in random_prompts(3)]
    )
    assert all(np.isfinite(finished.log_probs).all() for finished in samples)


def test_a_llama_whose_norms_add_one_is_not_left_to_kernels_that_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No family has such norms and no other layers of its own, but the next one may."""
    plain, offset = (make_tiny_model(tmp_path / name, "llama", scale=0.05) for name in ("plain", "offset"))
    tensors = load_file(offset / "model.safetensors")
    tensors = {name: value - 1 if "norm" in name else value for name, value in tensors.items()}
    save_file(tensors, offset / "model.safetensors", {"format": "pt"})
    prompts = random_prompts(3)
    expected = generate(plain, prompts)
    read = loading.engine_architecture
    monkeypatch.setattr(
        loading,
        "engine_architecture",
        lambda *given, **more: replace(read(*given, **more), offset_norms=True),
    )
    for ours, theirs in zip(generate(offset, prompts), expected, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=2e-5)


def generate(folder: Path, prompts: Sequence[np.ndarray]) -> list[SampleInProgress]:
    scheduler = load(EngineSetup(str(folder), dtype="float32", max_running=7)).scheduler
    samples = [new_sample(prompt, seed=1, max_new_tokens=9) for prompt in prompts]
    run(scheduler, samples)
    return samples
