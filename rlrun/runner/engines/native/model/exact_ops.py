"""The engine's operations where `true_on_policy` is set: the trainer computes with the same operators, and no
result depends on the batch (`rlrun.runner.exact_ops.operators`). `torch_ops` documents what each computes.
"""

from collections.abc import Sequence

import torch

from rlrun.models.architecture import Architecture, inexact_part
from rlrun.runner.engines.native.model.layer_weights import ModelWeights, with_matrices
from rlrun.runner.exact_ops.operators import load, operators

KERNELS = operators


def check(architecture: Architecture, device: torch.device) -> None:
    """Loads the operators. Raises ValueError where they do not compute the model."""
    reason = inexact_part(architecture)
    if reason is not None:
        raise ValueError(f"true_on_policy: {reason}")
    if device.type != "cpu":
        raise ValueError("true_on_policy: the native engine computes exactly on a CPU only")
    load()


def pack(weights: ModelWeights) -> ModelWeights:
    """Returns copies of the matrices in the order in which `linear` reads them."""
    return with_matrices(weights, operators.pack)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns x · weightᵀ + bias for a packed weight."""
    product: torch.Tensor = operators.linear(x, weight, bias, False)
    return product


def logits(hidden: torch.Tensor, head: torch.Tensor, *, wide: bool) -> torch.Tensor:
    """Returns the logits `[B, V]` of states `[B, H]` for a packed head; `wide`: in float32."""
    product: torch.Tensor = operators.linear(hidden, head, None, wide)
    return product


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `torch_ops`."""
    normed: torch.Tensor = operators.rms_norm(x.contiguous(), weight, eps)[0]
    return normed


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `torch_ops`."""
    product: torch.Tensor = operators.silu_mul(*gate_up.chunk(2, -1))
    return product


def rope_store(
    qkv: torch.Tensor,
    norms: tuple[torch.Tensor | None, torch.Tensor | None],
    eps: float,
    rotation: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """See `torch_ops`; norms round before the rotation, as in the trainer."""
    keys, values, slots = cache
    operators.rope_store(qkv.flatten(1), *norms, eps, *rotation, slots, keys, values)


def prefill_attention(qkv: torch.Tensor, heads: int, kv_heads: int, lengths: Sequence[int]) -> torch.Tensor:
    """See `torch_ops`; there is no padding."""
    queries, keys, values = qkv.split((heads, kv_heads, kv_heads), 1)
    attended: torch.Tensor = operators.attention(queries, keys, values, lengths, None, qkv.shape[-1] ** -0.5)[
        0
    ]
    return attended.flatten(1)


def continued_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, start: int
) -> torch.Tensor:
    """See `torch_ops`."""
    scale = queries.shape[-1] ** -0.5
    attended: torch.Tensor = operators.continued_attention(queries, keys, values, table.int(), start, scale)
    return attended


def token_log_probs(logits: torch.Tensor, tokens: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Returns the log-prob `[B]` of each row's token; at temperature 0 that at temperature 1."""
    warm = temperatures.masked_fill(temperatures == 0, 1.0)
    log_probs: torch.Tensor = operators.log_softmax(logits, tokens, warm)[0]
    return log_probs
