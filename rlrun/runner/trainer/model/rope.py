"""Rotary position embedding from a table that is made once for a packed batch and shared by all layers."""

import math
from dataclasses import dataclass

import torch

from rlrun.models.architecture import Architecture, Rope
from rlrun.runner.trainer.compat.modules import RoPE
from rlrun.runner.trainer.cpu_ops.elementwise import rotate


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """`[head_dim / 2]` float32 angle per position.

    `llama3` stretches long wavelengths by `factor`, keeps short ones, and blends between (Llama 3.1's
    release).
    """
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope.type == "linear":
        return frequencies / rope.factor
    if rope.type == "default":
        return frequencies
    if rope.type == "yarn":
        return _yarn(rope, head_dim, frequencies)
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return frequencies * keep + frequencies / rope.factor * (1.0 - keep)


def _yarn(rope: Rope, head_dim: int, frequencies: torch.Tensor) -> torch.Tensor:
    """YaRN's blend (https://arxiv.org/abs/2309.00071): stretched from the dimension on that turns `beta_slow`
    times in the original length, kept up to the one that turns `beta_fast` times.
    """

    def dimension(turns: float) -> float:
        share = math.log(rope.original_max_positions / (turns * 2 * math.pi))
        return head_dim * share / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    stretched = ramp.clamp(0.0, 1.0)
    return frequencies / rope.factor * stretched + frequencies * (1.0 - stretched)


class RopeTable:
    """Cosines and sines of every position, as `[positions, 2, head_dim]` float32."""

    def __init__(self, model: Architecture, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(model.rope, model.rotated)
        self._factor = model.rope.attention_factor
        self._device = device
        self._table = torch.empty(0)

    def rows(self, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Rows of the table for `[T]` positions below `longest`."""
        if longest > len(self._table):
            angles = torch.outer(torch.arange(longest, dtype=torch.float32), self._frequencies)
            angles = torch.cat((angles, angles), dim=1)
            self._table = torch.stack((angles.cos(), angles.sin()), dim=1) * self._factor
            self._table = self._table.to(self._device)
        return self._table.index_select(0, positions)


class TableRoPE(RoPE):
    """Rotates halves (Hugging Face's convention) by the rows of a `RopeTable`, given as positions."""

    @dataclass(kw_only=True, slots=True)
    class Config(RoPE.Config):
        pass

    def __init__(self, config: Config) -> None:
        super(RoPE, self).__init__()  # RoPE's own makes a cache for every layer
        self.config = config

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`[1, T, N, H]` queries and `[1, T, K, H]` keys, rotated in float32; `positions` `[T, 2, H]`."""
        return self._rotated(query, positions), self._rotated(key, positions)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return rotate(x.squeeze(0), positions).unsqueeze(0)

    def _init_self_buffers(self, *, buffer_device: torch.device | None = None) -> None:
        return None


class InterleavedRoPE(TableRoPE):
    """Rotates neighbouring dimensions, and gives them as halves: queries and keys alike, so that their
    products are the same.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(TableRoPE.Config):
        pass

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return super()._rotated(torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1), positions)
