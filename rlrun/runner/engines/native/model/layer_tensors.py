"""Looks up a layer's tensors in a checkpoint, and fuses those that are multiplied together."""

from collections.abc import Sequence

import numpy as np
import torch

from rlrun.runner.engines.native.model.layer_weights import Tensors


class LayerTensors:
    """The tensors of one layer, by the ends of their names."""

    def __init__(self, named: Tensors, prefix: str) -> None:
        self._named, self._prefix = named, prefix

    def __call__(self, name: str) -> torch.Tensor:
        return self._named[self._prefix + name]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._named

    def fused(self, block: str, names: Sequence[str], kind: str = "weight") -> torch.Tensor:
        """Returns projections as one tensor; `kind`: weight or bias."""
        return join([self(f"{block}.{name}.{kind}") for name in names])


def join(parts: list[torch.Tensor]) -> torch.Tensor:
    """Concatenates along rows, without a copy where the parts follow each other in one buffer."""
    first = parts[0]
    following = np.cumsum([first.data_ptr()] + [part.nbytes for part in parts[:-1]]).tolist()
    adjacent = all(
        part.is_contiguous()
        and part.data_ptr() == pointer
        and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        for part, pointer in zip(parts, following, strict=True)
    )
    if not adjacent:
        return torch.cat(parts)
    rows = sum(part.shape[0] for part in parts)
    return first.as_strided((rows, *first.shape[1:]), first.stride())
