"""Replaces the layers of a model config by those that round as SGLang's servers do."""

from dataclasses import fields
from typing import Any

from rlrun.runner.trainer.model.target.layers import (
    QueryKeyNorm,
    StreamNorm,
    TargetEmbedding,
    TargetRoPE,
    TargetSwiGLU,
)


def round_as_target(config: Any) -> Any:
    """Returns the config of a dense Qwen3 with the layers of `target.layers`, and attention without splits.

    Call it before sharding is set.
    """
    config.tok_embeddings = _as(TargetEmbedding, config.tok_embeddings)
    config.norm = _as(StreamNorm, config.norm)
    for layer in config.layers:
        attention = layer.attention
        assert attention.qk_norm is not None and layer.moe is None, "the rules refuse other families"
        layer.attention_norm = _as(StreamNorm, layer.attention_norm)
        layer.ffn_norm = _as(StreamNorm, layer.ffn_norm)
        layer.feed_forward = _as(TargetSwiGLU, layer.feed_forward)
        attention.qk_norm = _as(QueryKeyNorm, attention.qk_norm)
        attention.rope = _as(TargetRoPE, attention.rope)
        attention.inner_attention.splits = 1
    return config


def _as(module: Any, config: Any) -> Any:
    """Returns a module's config with the values of that of its base class."""
    return module.Config(**{field.name: getattr(config, field.name) for field in fields(config)})
