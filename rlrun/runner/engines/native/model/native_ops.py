"""The engine's operations on a CPU as C++ kernels; `torch_ops` documents what each computes.

They may be called once `load` has returned True. A trainer computes with the same operators.
"""

from collections.abc import Sequence

import torch

from rlrun.runner.engines.native.model.layer_weights import ModelWeights, with_matrices
from rlrun.runner.engines.native.model.sampling import Limits, Masks
from rlrun.runner.engines.native.model.torch_ops import linear
from rlrun.runner.kernels.operators import has_fast_panels, in_order, load, operators
from rlrun.runner.kernels.operators import packs as packs_matrix

__all__ = [
    "continued_attention",
    "linear",
    "load",
    "operators",
    "pack",
    "packs",
    "prefill_attention",
    "rms_norm",
    "rope_store",
    "sample",
    "sample_with_masks",
    "silu_mul",
]


def packs(dtype: torch.dtype) -> bool:
    """Returns whether the engine computes with packed matrices, and attends to prompts in order."""
    return in_order(dtype) or has_fast_panels(dtype)


def pack(weights: ModelWeights) -> ModelWeights:
    """Returns copies of the matrices in panels of columns (`kernels/products.h`).

    Products of a few rows are up to four times as fast as oneDNN's, which take some 10 µs to begin; products
    of hundreds take as long. Nothing is generated for a new number of rows, so batches need no padding.
    Experts stay as they are, and so do bfloat16 matrices with an odd number of columns, which `linear` also
    takes.
    """
    return with_matrices(weights, lambda matrix: operators.pack(matrix) if packs_matrix(matrix) else matrix)


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
    scale = qkv.shape[-1] ** -0.5
    attended: torch.Tensor = operators.attention(queries, keys, values, lengths, None, scale)[0]
    return attended.flatten(1)


def continued_attention(
    queries: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor, start: int
) -> torch.Tensor:
    """See `torch_ops`."""
    scale = queries.shape[-1] ** -0.5
    attended: torch.Tensor = operators.continued_attention(queries, *cache, table.int(), start, scale)
    return attended


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    limits: Limits | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `sampling`."""
    drawn: tuple[torch.Tensor, torch.Tensor] = operators.sample(
        logits, temperatures, seeds, positions, *(limits or (None, None, None))[:3]
    )
    return drawn


def sample_with_masks(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    limits: Limits,
) -> tuple[torch.Tensor, torch.Tensor, Masks]:
    """See `sampling`."""
    drawn = operators.sample_with_masks(logits, temperatures, seeds, positions, *limits[:3])
    tokens, log_probs, *masks = drawn
    return tokens, log_probs, Masks(*masks)
