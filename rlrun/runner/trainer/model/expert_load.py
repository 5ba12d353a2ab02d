"""Measures how evenly tokens are distributed over experts, and moves the biases that balance them.

routers count tokens ─▶ sums over all ranks ─▶ metrics, and each expert's bias for the next optimizer step
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from rlrun.models.architecture import Architecture
from rlrun.runner.trainer.compat.meshes import local_part
from rlrun.runner.trainer.model.decoder import PackedDecoder


class ExpertLoad:
    """Counts the tokens of each expert in every sparse layer; padding does not count."""

    def __init__(
        self,
        decoders: Sequence[PackedDecoder],
        model: Architecture,
        device: torch.device,
        *,
        rate: float | None = None,
        trained: Collection[str] = (),
    ) -> None:
        """`rate`: how far `balance` moves a bias; None: not at all. It leaves out the layers whose router is
        not among the `trained` parameters.
        """
        assert model.experts is not None
        self._decoders = decoders
        self._layers = sorted(model.experts.layers)
        self._experts, self._device = model.experts.count, device
        self._rate, self._trained = rate, frozenset(trained)
        self._table = torch.zeros(len(self._layers), self._experts, dtype=torch.int64)

    def reset(self) -> None:
        """Resets the counts for a new optimizer step."""
        for _, moe in self._sparse():
            moe.router.load = None

    def metrics(self) -> dict[str, torch.Tensor]:
        """Returns the load of the busiest and of the idlest expert, relative to an even share.

        Both are over all ranks, each in the layer where it is most extreme.
        """
        table = torch.zeros(len(self._layers), self._experts, dtype=torch.int64, device=self._device)
        for layer, moe in self._sparse():
            if moe.router.load is not None:
                table[self._layers.index(layer)] += moe.router.load
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(table)
        # Ranks that share tokens, and recomputed passes, count every expert's tokens equally often, so ratios
        # hold.
        self._table = table
        load = table.float() * self._experts / table.sum(1, keepdim=True).clamp(min=1)
        return {"train/expert_load_max": load.max(), "train/expert_load_min": load.min()}

    @torch.no_grad()
    def balance(self) -> None:
        """Moves the biases according to the counts of the last `metrics`, identically on every rank."""
        if self._rate is None:
            return
        for layer, moe in self._sparse():
            if f"layers.{layer}.moe.router.gate.weight" in self._trained:
                counts = self._table[self._layers.index(layer)]
                local_part(moe.expert_bias_E).add_(bias_change(counts, self._rate))

    def _sparse(self) -> Iterator[tuple[int, Any]]:
        """Yields the index and the mixture of experts of every sparse layer of the policy on this rank."""
        for decoder in self._decoders:
            for name, block in decoder.layers.items():
                if block.moe_enabled and int(name) in self._layers:
                    yield int(name), block.moe


def bias_change(counts: torch.Tensor, rate: float) -> torch.Tensor:
    """Returns the change `[E]` of each expert's bias: up by `rate` below an even share of tokens, else down.

    This is algorithm 1 of arXiv:2408.15664. As in torchtitan the mean is subtracted, because it would move
    all biases alike.
    """
    change = rate * torch.sign(counts.sum() - counts * len(counts)).float()
    return change - change.mean()
