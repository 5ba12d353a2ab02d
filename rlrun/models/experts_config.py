"""Reads what a `config.json` declares about its mixture of experts, without torch."""

from collections.abc import Mapping
from typing import Any

from rlrun.models.architecture import ClampedGate, Experts
from rlrun.models.attention_config import has_delta_net


def read_experts(config: Mapping[str, Any]) -> Experts:
    """Reads the mixture of experts; `config` includes the defaults of its family, which must have one."""
    if config["model_type"] == "deepseek_v3":
        return _deepseek_experts(config)
    if config["model_type"] == "gpt_oss":
        return _gpt_oss_experts(config)
    return _qwen3_experts(config)


def _qwen3_experts(config: Mapping[str, Any]) -> Experts:
    count = config.get("num_experts") or config["num_local_experts"]
    dense_layers = set(config.get("mlp_only_layers") or ())
    sparse_step = config.get("decoder_sparse_step", 1)
    return Experts(
        count=count,
        per_token=config["num_experts_per_tok"],
        intermediate=config["moe_intermediate_size"],
        # Qwen3.5 has no such option
        normalize=config.get("norm_topk_prob", True),
        shared=config["shared_expert_intermediate_size"] if has_delta_net(config) else 0,
        shared_gate=has_delta_net(config),
        layers=frozenset(
            layer
            for layer in range(config["num_hidden_layers"])
            if layer not in dense_layers and (layer + 1) % sparse_step == 0
        ),
    )


def _deepseek_experts(config: Mapping[str, Any]) -> Experts:
    count = config.get("n_routed_experts") or config["num_local_experts"]
    intermediate = config["moe_intermediate_size"]
    return Experts(
        count=count,
        per_token=config["num_experts_per_tok"],
        intermediate=intermediate,
        normalize=config["norm_topk_prob"],
        score="sigmoid",
        scale=config["routed_scaling_factor"],
        groups=config.get("n_group") or 1,
        chosen_groups=config.get("topk_group") or 1,
        shared=intermediate * config["n_shared_experts"],
        correction_bias=True,
        layers=frozenset(range(config["first_k_dense_replace"], config["num_hidden_layers"])),
    )


def _gpt_oss_experts(config: Mapping[str, Any]) -> Experts:
    """Reads gpt-oss's experts.

    Its router takes the softmax over the logits of the chosen experts only, which equals a softmax over all
    experts whose chosen weights are normalised.
    """
    return Experts(
        count=config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=config["intermediate_size"],
        normalize=True,
        layers=frozenset(range(config["num_hidden_layers"])),
        clamped_gate=ClampedGate(config["swiglu_limit"], config["swiglu_alpha"]),
    )
