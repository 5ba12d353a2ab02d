"""Kernels without a public name in torch: oneDNN's matrix product, and attention that returns its
log-sum-exp. And fla's kernels of Gated DeltaNet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

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
    causal: bool = True
    """False: each query sees all keys of its document, and there is no window."""
    splits: int | None = None
    """In how many parts `varlen_attn` sums over the keys; None: the kernel decides by the batch."""

    @property
    def sides(self) -> list[int]:
        """How many keys before and after its own a query sees, as the kernel takes it.

        Not [-1, -1] where it sees all keys: cuDNN would then compute on some GPUs, and its log-sum-exp is not
        known to be the kernel's.
        """
        return [self.window, 0] if self.causal else [-1, max(self.longest_queries, self.longest_keys)]


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
        call.causal and call.window == -1,
        call.scale,
        call.sides,
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
    gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.torch_attn._varlen_attn_backward(
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
        call.causal and call.window == -1,
        torch.zeros(2, dtype=torch.uint64, device=query.device),  # the random state of dropout, which is off
        call.scale,
        call.sides,
    )
    return gradients


FLA_CHUNK = 64
"""Number of tokens in a chunk of fla's kernels, by default."""
HAS_TRITON = find_spec("triton") is not None
"""Whether fla can be imported: CPU wheels of torch come without triton."""


@dataclass(frozen=True, slots=True)
class Borders:
    """The borders of packed documents, as fla's kernels take them."""

    offsets: torch.Tensor
    """`[documents + 1]` int32 on the device, as in `Documents`."""
    chunks: torch.Tensor
    """`[chunks, 2]` int32 on the device, from `chunk_table`. Without it, fla makes the table itself and
    copies it to the device from ordinary memory, for which the host waits, twice per layer and pass."""
    lengths: Sequence[int]

    def arguments(self) -> dict[str, torch.Tensor]:
        """Returns the arguments of a call.

        fla remembers what it derives from a tensor of starts by the tensor's identity. With a new tensor,
        forward pass and recomputation run the same operators, on which selective checkpointing relies.
        """
        starts = torch.tensor([0, *accumulate(self.lengths)], dtype=self.offsets.dtype)
        return {
            "cu_seqlens": self.offsets.clone(),
            "cu_seqlens_cpu": starts,
            "chunk_indices": self.chunks,
        }


def chunk_table(lengths: Sequence[int]) -> NDArray[np.int32]:
    """Returns the document of each chunk, and the chunk's number within it, `[chunks, 2]`."""
    counts = [-(-length // FLA_CHUNK) for length in lengths]
    documents = np.repeat(np.arange(len(counts)), counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    return np.stack((documents, numbers), 1).astype(np.int32)


def causal_convolution(x: torch.Tensor, weight: torch.Tensor, borders: Borders) -> torch.Tensor:
    """Returns fla's causal convolution of each channel `[T, C]` within documents, with its SiLU.

    `weight` has the taps `[C, K]`. Runs only on CUDA.
    """
    from fla.modules.conv.causal_conv1d import causal_conv1d  # see HAS_TRITON

    output, _ = causal_conv1d(
        x=x[None], weight=weight, bias=None, activation="silu", backend="triton", **borders.arguments()
    )
    mixed: torch.Tensor = output[0]
    return mixed


def chunked_delta_rule(  # noqa: PLR0917 (the five tensors of the rule)
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    borders: Borders,
) -> torch.Tensor:
    """Returns fla's gated delta rule `[T, N, V]`, with the arguments of `models.computation.delta_rule`.

    Runs only on CUDA.
    """
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    repeats = value.shape[1] // key.shape[1]
    query, key = (x.repeat_interleave(repeats, dim=1)[None] for x in (query, key))
    output, _ = chunk_gated_delta_rule(
        query, key, value[None], decay[None], beta[None], use_qk_l2norm_in_kernel=True, **borders.arguments()
    )
    result: torch.Tensor = output[0]
    return result
