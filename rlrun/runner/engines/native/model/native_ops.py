"""The engine's operations on a CPU as C++ kernels; `torch_ops` documents what each computes.

They may be called once `load` has returned True.
"""

import torch

from rlrun.runner.engines.native.model.layer_weights import ModelWeights, with_matrices
from rlrun.runner.engines.native.model.sampling import Limits, Masks
from rlrun.runner.engines.native.model.torch_ops import linear
from rlrun.runner.host.cpp_build import ENGINE_OPERATORS, load_operators

__all__ = [
    "KERNELS",
    "linear",
    "load",
    "pack",
    "packs",
    "rms_norm",
    "rope_store",
    "sample",
    "sample_with_masks",
    "silu_mul",
]

KERNELS = torch.ops.rlrun_engine


def load() -> bool:
    """Loads the kernels, compiled once for this machine; returns False if there is no compiler."""
    return load_operators(ENGINE_OPERATORS)


def packs(dtype: torch.dtype) -> bool:
    """Returns whether products with matrices in panels are faster here than oneDNN's."""
    fast: bool = KERNELS.has_fast_panels(dtype)
    return fast


def pack(weights: ModelWeights) -> ModelWeights:
    """Returns copies of the matrices in panels of 64 columns (`exact_ops/products.h`).

    Products of a few rows are up to four times as fast as oneDNN's, which take some 10 µs to begin; products
    of hundreds take as long. Nothing is generated for a new number of rows, so batches need no padding.
    Experts stay as they are, and so do matrices with an odd number of columns, which `linear` also takes.
    """
    return with_matrices(weights, lambda matrix: matrix if matrix.shape[1] % 2 else KERNELS.pack(matrix))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `torch_ops`."""
    normed: torch.Tensor = KERNELS.rms_norm(x, weight, eps)
    return normed


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `torch_ops`."""
    product: torch.Tensor = KERNELS.silu_mul(gate_up)
    return product


def rope_store(
    qkv: torch.Tensor,
    norms: tuple[torch.Tensor | None, torch.Tensor | None],
    eps: float,
    rotation: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """See `torch_ops`."""
    keys, values, slots = cache
    KERNELS.rope_store(qkv.flatten(1), *norms, eps, *rotation, slots, keys, values)


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    limits: Limits | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `sampling`."""
    drawn: tuple[torch.Tensor, torch.Tensor] = KERNELS.sample(
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
    tokens, log_probs, *masks = KERNELS.sample_with_masks(logits, temperatures, seeds, positions, *limits[:3])
    return tokens, log_probs, Masks(*masks)
