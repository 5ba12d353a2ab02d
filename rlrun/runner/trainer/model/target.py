"""Layers that round in the places where SGLang rounds with `rl_on_policy_target = "fsdp"`.

    tokens ─▶ embedding, float32 ─┬─▶ norm, float32 ─▶ rounded ─▶ attention, feed-forward, bfloat16 ─┐
                                  └───────────────────────▶ sum, float32 ◀───────────────────────────┘

The formulas are those of SGLang 0.5.23: `RMSNorm.forward_native` (layers/layernorm.py), `apply_rotary_emb`
(layers/rotary_embedding/utils.py), `SiluAndMul.forward_native` (layers/activation.py); models/qwen3.py says
what is rounded between them. Parameters are bfloat16, because that is what engines get; the server holds
embeddings and norms in float32, with the same values. The sum needs no layer: torch adds bfloat16 to float32
in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from rlrun.runner.trainer.compat.modules import Embedding, FeedForward, RMSNorm
from rlrun.runner.trainer.model.rope import TableRoPE
from rlrun.runner.trainer.ops.softmax import log_softmax

Rotation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class TargetEmbedding(Embedding):
    """An embedding whose rows start a residual stream in float32."""

    @dataclass(kw_only=True, slots=True)
    class Config(Embedding.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[1, T]` tokens to `[1, T, hidden]` float32."""
        rows: torch.Tensor = super().forward(input)
        return rows.float()


class StreamNorm(RMSNorm):
    """A norm of the residual stream, which rounds its result once, for the next product."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[..., size]` float32 to bfloat16."""
        normed: torch.Tensor = _Norm.apply(input, self.weight, self.eps, False)
        return normed.bfloat16()


class QueryKeyNorm(RMSNorm):
    """A norm of queries or keys, which rounds before it multiplies by its weight, and not after."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[..., head_dim]` bfloat16 to float32."""
        normed: torch.Tensor = _Norm.apply(input, self.weight, self.eps, True)
        return normed


class TargetSwiGLU(FeedForward):
    """The dense feed-forward, which rounds SiLU's result before it multiplies by it."""

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[..., hidden]` to `[..., hidden]`."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class TargetRoPE(TableRoPE):
    """Rotates queries and keys in float32 with the server's compiled function, then rounds them."""

    @dataclass(kw_only=True, slots=True)
    class Config(TableRoPE.Config):
        pass

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        cosines, sines = positions[:, 0, :half], positions[:, 1, :half]
        rotated: torch.Tensor = _Rotation.apply(x.squeeze(0), cosines, sines)
        return rotated.bfloat16().unsqueeze(0)


class _Norm(torch.autograd.Function):
    """x / sqrt(mean(x²) + eps) · weight in float32; backward keeps x and the scales only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, rounded: bool) -> torch.Tensor:
        """`rounded`: the product with the weight is that of numbers in the precision of `x`."""
        wide = x.float()
        scales = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scales)
        normed = wide * scales
        return weight.float() * (normed.to(x.dtype) if rounded else normed)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scales = ctx.saved_tensors
        normed = x.float() * scales
        gradients = grad * weight.float()
        of_x = (gradients - normed * (gradients * normed).mean(dim=-1, keepdim=True)) * scales
        of_weight = (grad * normed).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return of_x.to(x.dtype), None if of_weight is None else of_weight.to(weight.dtype), None, None


class _Rotation(torch.autograd.Function):
    """Turns the pairs (i, i + H/2) of `[T, N, H]` by the angles whose cosines and sines are `[T, H/2]`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        rotate = _compiled_rotation() if x.is_cuda else rotation
        return rotate(x, cosines, sines)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cosines, sines = ctx.saved_tensors
        return rotation(grad, cosines, -sines), None, None


def rotation(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Returns `[T, N, H]`, rotated by angles whose cosines and sines are `[T, H/2]`."""
    cosines, sines = cosines.unsqueeze(-2), sines.unsqueeze(-2)
    first, second = torch.chunk(x, 2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


@cache
def _compiled_rotation() -> Rotation:
    """Returns `rotation` compiled as the server compiles it.

    A compiled kernel may multiply and add in one step, without rounding in between; separate kernels do not.
    """
    compiled: Rotation = torch.compile(rotation, dynamic=True)
    return compiled


def round_as_target(config: Any) -> Any:
    """Returns the config of a dense Qwen3 with the layers of this module, and attention without splits.

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


def target_log_softmax(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns what `log_softmax` does, for logits `[R, V]` in bfloat16, with rounded log-probs.

    Log-probs are rounded as in the sampler (layers/sampler.py of SGLang 0.5.23): logits are divided in
    float32 and rounded to bfloat16, of which torch's log-softmax is taken. Log-sum-exps, from which gradients
    are computed, and entropies are not rounded.
    """
    results = log_softmax(logits, targets, temperature)
    # by a tensor, as the sampler does: CUDA multiplies by the reciprocal of a plain number
    temperatures = logits.new_full((len(logits), 1), temperature, dtype=torch.float32)
    log_probs = torch.log_softmax(logits.div(temperatures).bfloat16(), dim=-1)
    results[0] = log_probs.gather(1, targets[:, None])[:, 0]
    return results
