"""Rotary position embedding from a table that is computed once and shared by all layers."""

from dataclasses import dataclass

import torch

from rlrun.models.architecture import Architecture
from rlrun.models.computation.rope_tables import rope_tables
from rlrun.runner.trainer.compat.modules import RoPE
from rlrun.runner.trainer.ops.elementwise import rotate
from rlrun.runner.trainer.transfers import to_device


class RopeTable:
    """Cosines and sines of every position, as `[positions, 2, head_dim]` float32."""

    def __init__(self, model: Architecture, device: torch.device, *, on_device: bool = False) -> None:
        """`on_device`: the device computes cosines and sines, as a server does. A CPU rounds some of them
        differently.
        """
        self._rope, self._rotated_dim = model.rope, model.rotated_dim
        self._device = device
        self._computed_on = device if on_device else torch.device("cpu")
        self._table = torch.empty(0)

    def rows(self, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Returns `[T, 2, head_dim]`, the rows of `[T]` positions below `longest`; the table grows as
        needed.

        For positions `[3, T]` in time, height and width, every pair of dimensions turns by one of them.
        """
        if longest > len(self._table):
            halves = rope_tables(self._rope, self._rotated_dim, longest, self._computed_on)
            # Both halves of a head turn by the same angles, and the kernel reads a whole row.
            whole = [torch.cat((half, half), dim=1) for half in halves]
            self._table = to_device(torch.stack(whole, dim=1), self._device)
        if positions.ndim == 1:
            return self._table.index_select(0, positions)
        # both halves of a head turn by the same angles
        columns = torch.arange(self._rotated_dim, device=self._device)
        axes = to_device(torch.tensor(self._rope.axes * 2), self._device)
        return self._table[positions[axes].T[:, None], torch.arange(2, device=self._device)[:, None], columns]


class TableRoPE(RoPE):
    """Rotates the pairs (i, i + H/2), Hugging Face's convention, by rows of a `RopeTable`.

    torchtitan passes `positions` through to this module; here they are these rows.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(RoPE.Config):
        pass

    def __init__(self, config: Config) -> None:
        super(RoPE, self).__init__()  # RoPE.__init__ would build a table for every layer
        self.config = config

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `[1, T, N, H]` queries and `[1, T, K, H]` keys, rotated in float32; `positions` is `[T, 2,
        H]`.
        """
        return self._rotate(query, positions), self._rotate(key, positions)

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return rotate(x.squeeze(0), positions).unsqueeze(0)

    def _init_self_buffers(self, *, buffer_device: torch.device | None = None) -> None:
        return None


class InterleavedRoPE(TableRoPE):
    """Rotates the pairs (2i, 2i + 1), DeepSeek's convention.

    The result has the dimensions of the pairs in two halves. Queries and keys are permuted alike, so that
    their scores stay the same.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(TableRoPE.Config):
        pass

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return super()._rotate(torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1), positions)


class PartialRoPE(TableRoPE):
    """Rotates the first dimensions of each head, as many as the table has, and keeps the others."""

    @dataclass(kw_only=True, slots=True)
    class Config(TableRoPE.Config):
        pass

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        size = positions.shape[-1]
        rotated = super()._rotate(x[..., :size].contiguous(), positions)
        return torch.cat((rotated, x[..., size:]), dim=-1)


class PartialInterleavedRoPE(PartialRoPE):
    """Rotates the first dimensions of each head, neighbours in pairs as `InterleavedRoPE` does."""

    @dataclass(kw_only=True, slots=True)
    class Config(PartialRoPE.Config):
        pass

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        size = positions.shape[-1]
        pairs = x[..., 0:size:2], x[..., 1:size:2], x[..., size:]
        return super()._rotate(torch.cat(pairs, dim=-1), positions)
