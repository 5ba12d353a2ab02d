"""Modules that take the place of torchtitan's own in a model config, where a trainer of packed documents
needs others.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from rlrun.runner.trainer.compat.experts import GroupedExperts
from rlrun.runner.trainer.compat.kernels import HAS_ONEDNN, onednn_linear
from rlrun.runner.trainer.compat.modules import FeedForward, Linear, Module, RMSNorm
from rlrun.runner.trainer.cpu_ops.elementwise import rms_norm, silu_mul
from rlrun.runner.trainer.cpu_ops.library import on_gpu
from rlrun.runner.trainer.model.attention import Documents, Reach, packed_attention


class PackedAttention(Module):
    """Inner attention that gets the batch's `Documents` as its mask."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        window: int | None = None
        """How many keys a query sees, its own included; None: all of its document's."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._window = config.window

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
        """`[1, T, N, H]`; grouped-query attention follows from the numbers of heads."""
        scale = q_BLNH.shape[-1] ** -0.5 if scale is None else scale
        reach = Reach(scale, self._window, sinks)
        return packed_attention(
            q_BLNH.squeeze(0), k_BLNH.squeeze(0), v_BLNH.squeeze(0), attention_masks, reach
        ).unsqueeze(0)


class Matrix(Linear):
    """A linear layer; float32 on CPU runs on oneDNN."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., in]` -> `[..., out]`."""
        return product(input, self.weight, self.bias)


def product(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`input @ weight.T + bias`; float32 on CPU runs on oneDNN."""
    if HAS_ONEDNN and input.dtype == torch.float32 and not torch.compiler.is_compiling():
        output: torch.Tensor = _OneDnnLinear.apply(input, weight)
        return output if bias is None else output + bias
    return linear(input, weight, bias)


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        return onednn_linear(input, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        input, weight = ctx.saved_tensors
        rows, slopes = input.flatten(0, -2), grad.flatten(0, -2)
        return onednn_linear(grad, weight.t()), onednn_linear(slopes.t(), rows.t())


class Norm(RMSNorm):
    """RMSNorm in one pass over memory on CPU."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., size]` like its input."""
        assert self.eps is not None
        return rms_norm(input, self.weight, self.eps)


class SwiGLU(FeedForward):
    """The dense feed-forward, its gate in one pass over memory on CPU."""

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., hidden]` like its input."""
        return self.w2(silu_mul(self.w1(x), self.w3(x)))


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
        if on_gpu(x_RD) and x_RD.dtype == torch.bfloat16:
            result: torch.Tensor = super().forward(x_RD, num_tokens_per_expert_E)
            return result
        gate, down, up = (
            weight.to_local() if isinstance(weight, DTensor) else weight
            for weight in (self.w1_EFD, self.w2_EDF, self.w3_EFD)
        )
        counts = self.counts(num_tokens_per_expert_E, len(x_RD))
        parts = x_RD.split([*counts, len(x_RD) - sum(counts)])
        outputs = [
            linear(silu_mul(linear(part, w1), linear(part, w3)), w2)
            for part, w1, w2, w3 in zip(parts, gate.unbind(), down.unbind(), up.unbind(), strict=False)
        ]
        return torch.cat([*outputs, parts[-1] * 0])

    @staticmethod
    def counts(num_tokens_per_expert_E: torch.Tensor, rows: int) -> list[int]:
        """How many of the rows are each expert's."""
        counts: list[int] = num_tokens_per_expert_E.long().tolist()
        return counts


class RouterLinear(Linear):
    """The router's logits, which decide what experts run: computed in float32 whatever its input, or in its
    input's precision.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        wide: bool = True
        """Computed in float32."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.wide = config.wide

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., in]` -> `[..., out]` float32."""
        if not self.wide:
            return product(input, self.weight, self.bias).float()
        return linear(input.float(), self.weight.float(), None if self.bias is None else self.bias.float())
