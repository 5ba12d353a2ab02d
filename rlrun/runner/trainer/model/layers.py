"""Modules that replace torchtitan's in a model config: for packed documents, other precisions, or CPU
speed.
"""

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from rlrun.runner.trainer.compat.experts import GroupedExperts
from rlrun.runner.trainer.compat.modules import FeedForward, Linear, Module, RMSNorm
from rlrun.runner.trainer.model.attention import AttentionSettings, Documents, packed_attention
from rlrun.runner.trainer.ops.elementwise import rms_norm, silu_mul
from rlrun.runner.trainer.ops.library import on_gpu
from rlrun.runner.trainer.ops.products import linear_product


class PackedAttention(Module):
    """Inner attention whose mask is the batch's `Documents`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        window: int | None = None
        """How many keys a query sees, its own included; None: all up to its own."""
        splits: int | None = None
        """In how many parts the kernel of GPUs sums over the keys; None: it decides by the batch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._window, self._splits = config.window, config.splits

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: Documents,
        scale: float | None = None,
        enable_gqa: bool = False,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns `[1, T, N, H]`. torchtitan passes `enable_gqa`; here the numbers of heads decide."""
        scale = q_BLNH.shape[-1] ** -0.5 if scale is None else scale
        settings = AttentionSettings(scale, self._window, sinks, self._splits)
        return packed_attention(
            q_BLNH.squeeze(0), k_BLNH.squeeze(0), v_BLNH.squeeze(0), attention_masks, settings
        ).unsqueeze(0)


class Matrix(Linear):
    """A linear layer whose products on a CPU are the engine's, or oneDNN's."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        return linear_product(input, self.weight, self.bias)


class Norm(RMSNorm):
    """RMSNorm that passes over memory once on a CPU."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the normalised `[..., size]`."""
        assert self.eps is not None
        return rms_norm(input, self.weight, self.eps)


class OffsetNorm(Norm):
    """RMSNorm that multiplies by 1 + weight."""

    @dataclass(kw_only=True, slots=True)
    class Config(Norm.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the normalised `[..., size]`."""
        assert self.eps is not None
        # In float32: a sum in half precision would lose most digits of a small weight.
        scale = 1.0 + self.weight.float()
        return rms_norm(input.float(), scale, self.eps).type_as(input)


class SwiGLU(FeedForward):
    """The dense feed-forward, whose gate passes over memory once on a CPU."""

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[..., hidden]` to `[..., hidden]`."""
        return self.w2(silu_mul(self.w1(x), self.w3(x)))


class Experts(GroupedExperts):
    """Experts that compute in the precision of their input; torchtitan's always compute in bfloat16.

    bfloat16 on CUDA runs grouped products, as torchtitan's do; everything else one expert after the other.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """Maps `[R, D]` routed tokens, sorted by expert, to `[R, D]`; padding rows come last and stay
        zero.
        """
        gate, down, up = (
            weight.to_local() if isinstance(weight, DTensor) else weight
            for weight in (self.w1_EFD, self.w2_EDF, self.w3_EFD)
        )
        if on_gpu(x_RD) and x_RD.dtype == torch.bfloat16:
            ends = num_tokens_per_expert_E.cumsum(0, dtype=torch.int32)

            def product(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = self._grouped_mm(
                    A=tokens, B_t=weights.bfloat16().transpose(-2, -1), offs=ends
                )
                return result

            return product(silu_mul(product(x_RD, gate), product(x_RD, up)), down)
        counts = self.counts(num_tokens_per_expert_E, len(x_RD))
        tokens_by_expert = x_RD.split([*counts, len(x_RD) - sum(counts)])
        outputs = [
            self._product(silu_mul(self._product(tokens, w1), self._product(tokens, w3)), w2)
            for tokens, w1, w2, w3 in zip(
                tokens_by_expert, gate.unbind(), down.unbind(), up.unbind(), strict=False
            )
        ]
        return torch.cat([*outputs, tokens_by_expert[-1] * 0])

    @staticmethod
    def _product(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiplies one expert's tokens; low precision replaces this, as it does `_grouped_mm`."""
        return linear(tokens, weight)

    @staticmethod
    def counts(num_tokens_per_expert_E: torch.Tensor, rows: int) -> list[int]:
        """Returns how many of the rows each expert has; on a GPU this waits for the device."""
        counts: list[int] = num_tokens_per_expert_E.long().tolist()
        return counts


class RouterLinear(Linear):
    """The projection to the router's logits, in float32 whatever the input's precision.

    Rounded logits would choose other experts. `wide = False` computes in the input's precision instead.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        wide: bool = True
        """Compute in float32 (`trainer.moe.router_dtype`)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.wide = config.wide

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in]` to logits `[..., experts]` in float32."""
        if not self.wide:
            # torchtitan calls routers under an autocast to float32, which CUDA would follow
            with torch.autocast(input.device.type, enabled=False):
                return linear_product(input, self.weight, self.bias).float()
        return linear(input.float(), self.weight.float(), None if self.bias is None else self.bias.float())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a parameter; its gradient is laid out like the parameter."""
    return tensor.to_local(grad_placements=tensor.placements) if isinstance(tensor, DTensor) else tensor
