"""Lets a server with `rl_on_policy_target` run on a CPU: SGLang's own code apart from kernels of GPUs.

Deterministic inference is refused without such kernels, so torch's attention is put on the list of those
that offer it. `ordered_sums` stands in for batch-invariant products, means, log-softmax and attention; they
replace torch's operators at the same moment, `enable_batch_invariant_mode`.
"""

from types import ModuleType
from typing import Any

import torch
from ordered_sums import attention, replace_operators

_32 = 0xFFFFFFFF


def _allow_torch_native(module: ModuleType) -> None:
    module.DETERMINISTIC_ATTENTION_BACKEND_CHOICES.append("torch_native")
    module.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND.append("torch_native")


def _batch_invariant(module: ModuleType) -> None:
    def enable(enable_bmm: bool = True) -> None:
        module._batch_invariant_MODE = True  # type: ignore[attr-defined]
        module._batch_invariant_LIB = replace_operators()  # type: ignore[attr-defined]

    module.enable_batch_invariant_mode = enable  # type: ignore[attr-defined]


def _ordered_attention(module: ModuleType) -> None:
    module.scaled_dot_product_attention = attention  # type: ignore[attr-defined]


def _hash(module: ModuleType) -> None:
    """MurmurHash3 of a seed, a position and a token."""

    def mix(h: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k = k * 0xCC9E2D51 & _32
        k = (k << 15 | k >> 17) & _32
        h = h ^ k * 0x1B873593 & _32
        h = (h << 13 | h >> 19) & _32
        return (h * 5 + 0xE6546B64) & _32

    def final(h: torch.Tensor) -> torch.Tensor:
        h = (h ^ h >> 16) * 0x85EBCA6B & _32
        h = (h ^ h >> 13) * 0xC2B2AE35 & _32
        return h ^ h >> 16

    def hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        seeds = seed.to(torch.int64)
        h = torch.zeros_like(seeds)
        for block in (seeds & _32, seeds >> 32 & _32, positions.long() & _32):
            h = mix(h, block)
        return final(mix(h[:, None], columns.long()[None]) ^ 16)

    module.murmur_hash32 = hash32  # type: ignore[attr-defined]


def _on_the_cpu(self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return self


torch.Tensor.cuda = _on_the_cpu  # the rotation's frequencies are moved to the GPU in any case

PATCHES = {
    "sglang.srt.arg_groups.choices": _allow_torch_native,
    "sglang.srt.batch_invariant_ops.batch_invariant_ops": _batch_invariant,
    "sglang.srt.layers.attention.torch_native_backend": _ordered_attention,
    "sglang.kernels.ops.sampling.murmur_hash": _hash,
}
