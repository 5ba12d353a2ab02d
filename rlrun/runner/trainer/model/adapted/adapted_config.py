"""Builds decoders whose matrices have low-rank adapters, by torchtitan's converter.

model config, sharded ─▶ AdaptedConfig ─build─▶ decoder on meta ─parallelize─▶ freeze_base ─▶ FSDP

Each adapted matrix keeps its name; its adapter's factors are `….lora_a.weight` and `….lora_b.weight`. Those
of experts are parameters of `AdaptedExperts`.
"""

from typing import Any

import torch
from torch import nn

from rlrun.models.adapters import Adapter, ExpertAdapter, LoraShape, adapters
from rlrun.models.architecture import Architecture
from rlrun.runner.trainer.compat.lora import convert_to_lora
from rlrun.runner.trainer.model.adapted.adapted_experts import adapt_experts
from rlrun.runner.trainer.model.decoder import PackedDecoder

ADAPTER = ".lora_"
"""The names of adapters' parameters contain this, and those of no other parameters."""
_KEYS_AND_VALUES = "wkv"
"""torchtitan's one config of the two matrices `wk` and `wv`."""


class AdaptedConfig:
    """A model config with adapters."""

    def __init__(self, config: Any, model: Architecture, lora: LoraShape) -> None:
        """Raises ValueError if a target is not a matrix of the model that can have an adapter."""
        chosen = adapters(model, lora)
        names = {each.matrix.parameter.split(".")[-2] for each in chosen if isinstance(each, Adapter)}
        if of_experts := sorted({each.target for each in chosen if isinstance(each, ExpertAdapter)}):
            for layer in config.layers:
                if layer.moe is not None:
                    routed = layer.moe.routed_experts
                    routed.inner_experts = adapt_experts(
                        routed.inner_experts, lora.rank, lora.scale, of_experts
                    )
        self._without = {"wk", "wv"} - names if names & {"wk", "wv"} else set()
        self._plain = [getattr(layer.attention, "qkv_linear", None) for layer in config.layers]
        self._plain = [None if qkv is None else getattr(qkv, _KEYS_AND_VALUES) for qkv in self._plain]
        in_config = {_KEYS_AND_VALUES if name in ("wk", "wv") else name for name in names}
        self._config = convert_to_lora(config, rank=lora.rank, scale=lora.scale, names=in_config)

    def build(self) -> PackedDecoder:
        """Returns the decoder. Its adapters have no defined values yet."""
        decoder: PackedDecoder = self._config.build()
        for name in self._without:
            # keys and values share a config, so that the one without an adapter is replaced
            for layer, plain in zip(decoder.layers.values(), self._plain, strict=True):
                if plain is not None:  # else the layer has no attention
                    setattr(layer.attention.qkv_linear, name, plain.build())
        return decoder


def freeze_base(decoder: nn.Module, dtype: torch.dtype) -> None:
    """Turns gradients off for all parameters that are not adapters, and holds them in `dtype`.

    Call it before FSDP: its shards of the adapters remain float32, as masters.
    """
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_(ADAPTER in name)
        if ADAPTER not in name:
            # a new Parameter would lose the layout that is noted on this one
            parameter.data = parameter.data.to(dtype)
