"""Modules that take the place of torchtitan's own in a model config, where a trainer of packed documents
needs others.
"""

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear, silu
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.protocols.module import Module

from rlrun.runner.trainer.attention import Documents, packed_attention


class PackedAttention(Module):
    """Inner attention that gets the batch's `Documents` as its mask."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: Documents,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """`[1, T, N, H]`; grouped-query attention follows from the numbers of heads."""
        scale = q_BLNH.shape[-1] ** -0.5 if scale is None else scale
        return packed_attention(
            q_BLNH.squeeze(0), k_BLNH.squeeze(0), v_BLNH.squeeze(0), attention_masks, scale
        ).unsqueeze(0)


class Experts(GroupedExperts):
    """Experts in the precision of their input: grouped products in bfloat16 on CUDA, expert by expert
    elsewhere.

    torchtitan's compute in bfloat16 always.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """`[R, D]` routed tokens sorted by expert."""
        if x_RD.is_cuda and x_RD.dtype == torch.bfloat16:
            result: torch.Tensor = super().forward(x_RD, num_tokens_per_expert_E)
            return result
        gate, down, up = (
            weight.to_local() if isinstance(weight, DTensor) else weight
            for weight in (self.w1_EFD, self.w2_EDF, self.w3_EFD)
        )
        counts = num_tokens_per_expert_E.long().tolist()
        parts = x_RD.split([*counts, len(x_RD) - sum(counts)])
        outputs = [
            linear(silu(linear(part, w1)) * linear(part, w3), w2)
            for part, w1, w2, w3 in zip(parts, gate.unbind(), down.unbind(), up.unbind(), strict=False)
        ]
        return torch.cat([*outputs, parts[-1] * 0])


class Float32Linear(Linear):
    """A linear layer in float32 whatever its input: the router's logits decide which experts run."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., in]` -> `[..., out]` float32."""
        return linear(input.float(), self.weight.float())
