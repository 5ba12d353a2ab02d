"""transformers' rotary frequencies that follow a sequence's length, for packed documents.

With `dynamic` and `longrope` transformers picks frequencies by the longest sequence that it is given, and
remembers them. In a pack that would be the longest document, or one of an earlier pack: here every document
gets the frequencies that it has alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def follow_documents(model: nn.Module) -> None:
    """Change the rotary modules of a model whose frequencies follow the length; others stay as they are."""
    for module in model.modules():
        if _follows_length(module):
            module.forward = _by_document(type(module), module.config)


def _follows_length(module: nn.Module) -> bool:
    kinds = getattr(module, "rope_type", None)
    by_layer = (
        kinds.values() if isinstance(kinds, dict) else [kinds]
    )  # some models have several kinds of layers
    return any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in by_layer)


def _by_document(
    kind: Callable[[Any], nn.Module], config: Any
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Cosines and sines of packed positions; a document begins at position 0."""

    def forward(
        x: torch.Tensor, position_ids: torch.Tensor, *others: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        starts = (position_ids[0] == 0).nonzero()[:, 0].tolist()
        ends = [*starts[1:], position_ids.shape[1]]
        parts = []
        for start, end in zip(starts, ends, strict=True):
            with torch.device(x.device):
                alone = kind(config)  # a new one each time: it remembers lengths
            parts.append(alone(x, position_ids[:, start:end], *others, **named))
        cosines, sines = zip(*parts, strict=True)
        return torch.cat(cosines, dim=1), torch.cat(sines, dim=1)

    return forward
