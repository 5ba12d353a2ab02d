"""Kernels without a public name in torch: oneDNN's matrix product, and attention that returns its
log-sum-exp.
"""

from dataclasses import dataclass

import torch

from rlrun.runner.trainer.compat.device import ON_CPU

HAS_ONEDNN = ON_CPU and torch.backends.mkldnn.is_available()


def onednn_linear(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns `input @ weight.T` in float32, computed by oneDNN, for any strides; without a gradient.

    torch's own float32 product is MKL's, which on AMD processors has between 40 and 85 % of oneDNN's speed.
    """
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, None, "none", [], "")
    return product


@dataclass(frozen=True, slots=True)
class VarlenCall:
    """The arguments of torch's variable-length attention, apart from its tensors."""

    query_offsets: torch.Tensor
    key_offsets: torch.Tensor
    longest_queries: int
    longest_keys: int
    scale: float
    window: int
    """How many keys before its own a query sees; -1: all."""


def varlen_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: VarlenCall
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output `[T, N, H]` and the log-sum-exp of the scores `[N, T]` float32.

    Runs only on CUDA, in half precision.
    """
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
    """Returns the gradients of queries, keys and values, given the output and the log-sum-exp of the
    scores.
    """
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
        torch.zeros(2, dtype=torch.uint64, device=query.device),  # the random state of dropout, which is off
        call.scale,
        [call.window, 0],
    )
    return slopes
