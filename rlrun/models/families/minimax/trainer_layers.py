"""MiniMax-M2's attention, whose norms of queries and keys are each over all heads together."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlrun.runner.trainer.compat.modules import GQAttention, Module
from rlrun.runner.trainer.compat.overlapped import tensor_group
from rlrun.runner.trainer.model.decoder_parts import FROM_CHECKPOINT, DecoderParts
from rlrun.runner.trainer.model.layers import local
from rlrun.runner.trainer.model.rank_functions import Sum, SumGradients


class Parts(DecoderParts):
    """The parts of MiniMax-M2's decoder."""

    def attention(self, layer: int) -> Any:
        """Returns the config of grouped-query attention with joint norms."""
        model = self.model
        queries, keys = (
            JointNorm.Config(size=heads * model.head_dim, eps=model.norm_eps, param_init=FROM_CHECKPOINT)
            for heads in (model.heads, model.kv_heads)
        )
        return JointNormAttention.Config(**self.grouped_queries(), q_norm=queries, k_norm=keys)


class JointNorm(Module):
    """RMSNorm over the heads of all tensor-parallel ranks; each rank has the weights of its own heads."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        size: int
        """Number of weights of all heads."""
        eps: float

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._size, self._eps = config.size, config.eps
        self.weight = nn.Parameter(torch.empty(config.size))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the normalised `[1, T, N, H]` of this rank's heads."""
        wide = input.flatten(2).float()
        squares = wide.square().sum(-1, keepdim=True)
        if (group := tensor_group()) is not None:
            # every rank computes with the sum, so that its gradients are summed, too
            squares = Sum.apply(SumGradients.apply(squares, group), group)
        normed = wide * torch.rsqrt(squares / self._size + self._eps)
        return (local(self.weight) * normed.type_as(input)).view_as(input)


class JointNormAttention(GQAttention):
    """Grouped-query attention whose queries and keys have a `JointNorm` each."""

    @dataclass(kw_only=True, slots=True)
    class Config(GQAttention.Config):
        q_norm: JointNorm.Config
        k_norm: JointNorm.Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.q_norm = config.q_norm.build()
        self.k_norm = config.k_norm.build()
