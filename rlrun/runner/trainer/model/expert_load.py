"""How evenly the tokens of an optimizer step were shared out among the experts, and the bias that evens it
out.

routers count ─▶ summed up over ranks ─▶ metrics, and the bias of each expert for the next step
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from rlrun.models.architecture import Architecture
from rlrun.runner.trainer.compat.meshes import local_part
from rlrun.runner.trainer.model.decoder import PackedDecoder


class ExpertLoad:
    """Tokens by expert in every sparse layer; those that fill up do not count."""

    def __init__(
        self,
        decoders: Sequence[PackedDecoder],
        model: Architecture,
        device: torch.device,
        *,
        rate: float | None = None,
        trained: Collection[str] = (),
    ) -> None:
        """`rate`: by which `balance` moves biases; None: it does not. Layers whose router is not among the
        `trained` parameters keep theirs.
        """
        assert model.experts is not None
        self._decoders = decoders
        self._layers = sorted(model.experts.layers)
        self._experts, self._device = model.experts.count, device
        self._rate, self._trained = rate, frozenset(trained)
        self._table = torch.zeros(len(self._layers), self._experts, dtype=torch.int64)

    def reset(self) -> None:
        """Start an optimizer step."""
        for _, moe in self._sparse():
            moe.router.load = None

    def metrics(self) -> dict[str, float]:
        """Tokens of the busiest and of the idlest expert in proportion to an even share, over all ranks: the
        layer where that is most uneven.
        """
        table = torch.zeros(len(self._layers), self._experts, dtype=torch.int64, device=self._device)
        for layer, moe in self._sparse():
            if moe.router.load is not None:
                table[self._layers.index(layer)] += moe.router.load
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(table)
        # ranks that share tokens, and passes that run twice, count them alike for every expert
        self._table = table
        load = table.float() * self._experts / table.sum(1, keepdim=True).clamp(min=1)
        return {"train/expert_load_max": float(load.max()), "train/expert_load_min": float(load.min())}

    @torch.no_grad()
    def balance(self) -> None:
        """Move biases by what `metrics` found, on every rank alike."""
        if self._rate is None:
            return
        for layer, moe in self._sparse():
            if f"layers.{layer}.moe.router.gate.weight" in self._trained:
                counts = self._table[self._layers.index(layer)]
                local_part(moe.expert_bias_E).add_(bias_change(counts, self._rate))

    def _sparse(self) -> Iterator[tuple[int, Any]]:
        """Layer and mixture of every sparse layer on this rank."""
        for decoder in self._decoders:
            for name, block in decoder.layers.items():
                if block.moe_enabled:
                    yield int(name), block.moe


def bias_change(counts: torch.Tensor, rate: float) -> torch.Tensor:
    """`[E]` float32: up by `rate` for experts with fewer tokens than their share, down for those with more
    (arXiv:2408.15664, algorithm 1); as in torchtitan without its mean, which would move all of them.
    """
    change = rate * torch.sign(counts.sum() - counts * len(counts)).float()
    return change - change.mean()
