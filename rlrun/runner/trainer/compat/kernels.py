"""Kernels of torch's that it has no public names for: oneDNN's matrix product, attention of documents of
several lengths.
"""

from dataclasses import dataclass

import torch

from rlrun.runner.trainer.compat.device import ON_CPU

HAS_ONEDNN = ON_CPU and torch.backends.mkldnn.is_available()


def onednn_linear(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`input @ weight.T` in float32 through oneDNN, of any strides; no gradient.

    torch's own float32 product is MKL's, which on AMD processors reaches between 40 and 85 % of this.
    """
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, None, "none", [], "")
    return product


@dataclass(frozen=True, slots=True)
class VarlenCall:
    """What torch's attention of documents of several lengths gets beside its tensors."""

    query_offsets: torch.Tensor
    key_offsets: torch.Tensor
    longest_queries: int
    longest_keys: int
    scale: float
    window: int
    """Keys that a query sees before its own; -1: all."""


def varlen_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: VarlenCall
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[T, N, H]` and log-sum-exp of the scores `[N, T]` float32; CUDA alone, half precision."""
    output, log_sums, _ = torch.ops.torch_attn._varlen_attn(
        query,
        key,
        value,
        call.query_offsets,
        call.key_offsets,
        call.longest_queries,
        call.longest_keys,
        call.window == -1,
        call.scale,
        [call.window, 0],
        query.shape[1] != key.shape[1],
    )
    return output, log_sums


def varlen_backward(  # noqa: PLR0917
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    call: VarlenCall,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for queries, keys and values of scores whose softmax has this output and log-sum-exp."""
    slopes: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.torch_attn._varlen_attn_backward(
        grad,
        query,
        key,
        value,
        output,
        log_sums,
        call.query_offsets,
        call.key_offsets,
        call.longest_queries,
        call.longest_keys,
        call.window == -1,
        torch.zeros(2, dtype=torch.uint64, device=query.device),  # of a dropout that is off
        call.scale,
        [call.window, 0],
    )
    return slopes
