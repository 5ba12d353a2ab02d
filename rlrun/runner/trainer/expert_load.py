"""How evenly the tokens of an optimizer step were shared out among the experts."""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from rlrun.converters.architecture import Architecture
from rlrun.runner.trainer.decoder import PackedDecoder


class ExpertLoad:
    """Counts tokens by expert in every sparse layer; filled-up ones too."""

    def __init__(self, decoders: Sequence[PackedDecoder], model: Architecture, device: torch.device) -> None:
        assert model.experts is not None
        self._decoders = decoders
        self._layers = sorted(model.experts.layers)
        self._experts, self._device = model.experts.count, device

    def reset(self) -> None:
        """Start an optimizer step."""
        for _, counts in self._counts():
            counts.zero_()

    def metrics(self) -> dict[str, float]:
        """Tokens of the busiest and of the idlest expert in proportion to an even share, over all ranks: the
        layer where that is most uneven.
        """
        table = torch.zeros(len(self._layers), self._experts, device=self._device)
        for layer, counts in self._counts():
            table[self._layers.index(layer)] += counts
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(table)
        # ranks that share tokens, and passes that run twice, count them alike for every expert
        load = table * self._experts / table.sum(1, keepdim=True).clamp(min=1)
        return {"train/expert_load_max": float(load.max()), "train/expert_load_min": float(load.min())}

    def _counts(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Layer and `[experts]` counts of every sparse layer on this rank."""
        for decoder in self._decoders:
            for name, block in decoder.layers.items():
                if block.moe_enabled:
                    yield int(name), block.moe.tokens_per_expert_E
