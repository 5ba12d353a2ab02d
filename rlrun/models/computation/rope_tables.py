"""Tables of the rotary position embedding (Su et al. 2021, arXiv:2104.09864), with its scalings.

The trainer and the native engine both rotate by these tables, so that their angles are equal to the last bit.
"""

import math
from typing import TYPE_CHECKING

from rlrun.models.architecture import Rope

if TYPE_CHECKING:
    import torch


def rope_tables(
    rope: Rope, head_dim: int, length: int, device: "torch.device | None" = None
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Returns cosines and sines `[length, head_dim / 2]` in float32, multiplied by yarn's
    `attention_factor`; `device` computes them (None: the CPU), from frequencies of the CPU.
    """
    import torch  # here, because everything else in rlrun.models works without torch

    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, _frequencies(rope, head_dim).to(positions.device))
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def _frequencies(rope: Rope, head_dim: int) -> "torch.Tensor":
    """Returns each pair of dimensions' angle per position, `[head_dim / 2]`."""
    import torch

    frequencies = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope.type == "default":
        return frequencies
    if rope.type == "linear":
        return frequencies / rope.factor
    return _llama3(rope, frequencies) if rope.type == "llama3" else _yarn(rope, head_dim, frequencies)


def _llama3(rope: Rope, frequencies: "torch.Tensor") -> "torch.Tensor":
    """Keeps high frequencies, divides low ones by `factor`, and blends in between (Llama 3.1's release)."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * kept + frequencies / rope.factor * (1.0 - kept)


def _yarn(rope: Rope, head_dim: int, frequencies: "torch.Tensor") -> "torch.Tensor":
    """Scales frequencies as YaRN does (https://arxiv.org/abs/2309.00071).

    Dimensions up to the one that turns `beta_fast` times within the original context are kept, those from the
    one that turns `beta_slow` times are divided by `factor`, and those in between are blended linearly.
    """
    import torch

    def dimension(turns: float) -> float:
        share = math.log(rope.original_max_positions / (turns * 2 * math.pi))
        return head_dim * share / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    scaled = ramp.clamp(0.0, 1.0)
    return frequencies / rope.factor * scaled + frequencies * (1.0 - scaled)
