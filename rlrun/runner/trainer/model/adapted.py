"""LoRA for the matrices of a decoder.

model config, sharded ─▶ AdaptedConfig ─build─▶ decoder on meta ─parallelize─▶ freeze_base ─▶ FSDP

Each adapted matrix keeps its name; its adapter's factors are `….lora_a.weight` and `….lora_b.weight`. Those
of experts are parameters of `AdaptedExperts`:

gate, up = w1 · x + scale · B · A · x,  w3 · x + …        one A serves both; B has their outputs in turns
output   = w2 · h + scale · B′ · A′ · h
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear, pad, silu

from rlrun.models.adapters import (
    STACKED_DOWN,
    STACKED_GATE_UP,
    Adapter,
    ExpertAdapter,
    LoraShape,
    adapters,
)
from rlrun.models.architecture import Architecture
from rlrun.runner.trainer.compat.lora import convert_to_lora, shard_expert_factors
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.layers import Experts
from rlrun.runner.trainer.ops.elementwise import silu_mul
from rlrun.runner.trainer.ops.library import on_gpu

ADAPTER = ".lora_"
"""The names of adapters' parameters contain this, and those of no other parameters."""
_KEYS_AND_VALUES = "wkv"
"""torchtitan's one config of the two matrices `wk` and `wv`."""
_SPLIT = ("lora_b_gate_up", "lora_a_down")
"""Factors with the experts' inner width, which tensor-parallel ranks split."""
_WHOLE = ("lora_a_gate_up", "lora_b_down")
_ALIGNED = 8
"""CUDA's grouped products want rows of 16 bytes, so that a rank is padded to a multiple of this."""
_FACTORS = ("lora_a_gate_up", "lora_b_gate_up", "lora_a_down", "lora_b_down")


class AdaptedConfig:
    """A model config with adapters."""

    def __init__(self, config: Any, model: Architecture, lora: LoraShape) -> None:
        """Raises ValueError if a target is not a matrix of the model that can have an adapter."""
        chosen = adapters(model, lora)
        names = {
            adapter.matrix.parameter.split(".")[-2] for adapter in chosen if isinstance(adapter, Adapter)
        }
        if of_experts := sorted({adapter.target for adapter in chosen if isinstance(adapter, ExpertAdapter)}):
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


class AdaptedExperts(Experts):
    """Experts whose gate and up, or down, or all three have adapters.

    Factors are `[experts, width, rank]`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Experts.Config):
        rank: int
        scale: float
        targets: tuple[str, ...]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        experts, rank = config.num_experts, config.rank
        self._scale = config.scale
        self._has_gate_up = STACKED_GATE_UP in config.targets
        self._has_down = STACKED_DOWN in config.targets
        if self._has_gate_up:
            self.lora_a_gate_up = nn.Parameter(torch.empty(experts, config.dim, rank))
            self.lora_b_gate_up = nn.Parameter(torch.empty(experts, 2 * config.hidden_dim, rank))
        if self._has_down:
            self.lora_a_down = nn.Parameter(torch.empty(experts, config.hidden_dim, rank))
            self.lora_b_down = nn.Parameter(torch.empty(experts, config.dim, rank))

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """Maps `[R, D]` routed tokens, sorted by expert, to `[R, D]`; padding rows come last and stay
        zero.
        """
        if on_gpu(x_RD) and x_RD.dtype == torch.bfloat16:
            return self._grouped(x_RD, num_tokens_per_expert_E)
        counts = self.counts(num_tokens_per_expert_E, len(x_RD))
        tokens_by_expert = x_RD.split([*counts, len(x_RD) - sum(counts)])
        outputs = [
            self._expert(tokens, weights)
            for tokens, *weights in zip(tokens_by_expert, *self._weights(), strict=False)
        ]
        return torch.cat([*outputs, tokens_by_expert[-1] * 0])

    def _weights(self) -> list[Sequence[Any]]:
        """Returns this rank's w1, w2, w3 and factors, expert by expert; None for factors that are absent."""
        names = ("w1_EFD", "w2_EDF", "w3_EFD", *_FACTORS)
        parts = [_local(getattr(self, name, None)) for name in names]
        return [[None] * len(parts[0]) if part is None else part.unbind() for part in parts]

    def _expert(self, tokens: torch.Tensor, weights: Sequence[Any]) -> torch.Tensor:
        w1, w2, w3, a_gate_up, b_gate_up, a_down, b_down = weights
        gate, up = linear(tokens, w1), linear(tokens, w3)
        if a_gate_up is not None:
            both = self._scale * linear(tokens @ a_gate_up, b_gate_up)
            gate, up = gate + both[:, 0::2], up + both[:, 1::2]
        inner = silu_mul(gate, up)
        output = linear(inner, w2)
        return output if a_down is None else output + self._scale * linear(inner @ a_down, b_down)

    def _grouped(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Computes the same with grouped products, without waiting for the device to count tokens."""
        ends = counts.cumsum(0, dtype=torch.int32)

        def product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            """Maps `[R, in]` to `[R, out]` by weights `[experts, out, in]`."""
            result: torch.Tensor = self._grouped_mm(A=rows, B_t=weight.transpose(1, 2), offs=ends)
            return result

        def adapted(rows: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            return self._scale * product(product(rows, down.transpose(1, 2)), up)

        names = ("w1_EFD", "w2_EDF", "w3_EFD")
        w1, w2, w3 = (_local(getattr(self, name)).to(x.dtype) for name in names)
        factors = [_local(getattr(self, name, None)) for name in _FACTORS]
        a_gate_up, b_gate_up, a_down, b_down = (
            None if factor is None else _padded(factor).to(x.dtype) for factor in factors
        )
        gate, up = product(x, w1), product(x, w3)
        if a_gate_up is not None:
            both = adapted(x, a_gate_up, b_gate_up)
            gate, up = gate + both[:, 0::2], up + both[:, 1::2]
        inner = silu(gate) * up
        output = product(inner, w2)
        return output if a_down is None else output + adapted(inner, a_down, b_down)


def adapt_experts(
    config: Experts.Config, rank: int, scale: float, targets: Sequence[str]
) -> AdaptedExperts.Config:
    """Returns the config of the same experts with adapters, and their layout over the ranks."""
    values = {field.name: getattr(config, field.name) for field in fields(config) if field.init}
    suffixes = [target.removeprefix("experts.").removesuffix("_proj") for target in targets]
    split, whole = ([name for name in names if name.endswith(tuple(suffixes))] for names in (_SPLIT, _WHOLE))
    values["sharding_config"] = shard_expert_factors(config.sharding_config, split, whole)
    return AdaptedExperts.Config(**values, rank=rank, scale=scale, targets=tuple(targets))


def _local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _padded(factor: torch.Tensor) -> torch.Tensor:
    """Returns a factor whose rank is aligned; the new columns are zero."""
    return pad(factor, (0, -factor.shape[-1] % _ALIGNED))
