"""Rotary position embedding from a table that is made once for a packed batch and shared by all layers."""

import math
from dataclasses import dataclass

import torch

from rlrun.converters.architecture import Architecture, Rope
from rlrun.runner.trainer.compat import RoPE
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
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return frequencies * keep + frequencies / rope.factor * (1.0 - keep)


class RopeTable:
    """Cosines and sines of every position, as `[positions, 2, head_dim]` float32."""

    def __init__(self, model: Architecture, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(model.rope, model.head_dim)
        self._device = device
        self._table = torch.empty(0)

    def rows(self, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Rows of the table for `[T]` positions below `longest`."""
        if longest > len(self._table):
            angles = torch.outer(torch.arange(longest, dtype=torch.float32), self._frequencies)
            angles = torch.cat((angles, angles), dim=1)
            self._table = torch.stack((angles.cos(), angles.sin()), dim=1).to(self._device)
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
        rotated = (rotate(x.squeeze(0), positions).unsqueeze(0) for x in (query, key))
        return next(rotated), next(rotated)

    def _init_self_buffers(self, *, buffer_device: torch.device | None = None) -> None:
        return None
