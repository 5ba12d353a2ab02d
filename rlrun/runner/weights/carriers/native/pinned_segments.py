"""Registers the job's shared-memory segments with CUDA, so that a GPU reads new weights from them directly.

It is done once for each of the two segments that the trainer writes in turns; both stay mapped.
"""

import torch

from rlrun.runner.weights.carriers.native.shared_memory import AttachedWeights
from rlrun.runner.weights.page_locking import PageLock
from rlrun.runner.weights.tensor_slots import tensors_in

_SEGMENTS = 2
"""Number of segments that a trainer writes; a trainer that was started again has new ones."""


class PinnedSegments:
    """The registered segments, by name."""

    def __init__(self) -> None:
        self._locks: dict[str, PageLock] = {}

    def tensors(self, attached: AttachedWeights) -> dict[str, torch.Tensor]:
        """Returns the tensors of an attached segment, in registered memory.

        Raises ValueError if CUDA does not register it.
        """
        if attached.segment not in self._locks:
            while len(self._locks) >= _SEGMENTS:
                self._release(next(iter(self._locks)))
            try:
                self._locks[attached.segment] = PageLock(attached.memory)
            except RuntimeError as error:
                raise ValueError(f'{error}; use engine.type = "sglang"') from error
        return tensors_in(self._locks[attached.segment].memory, attached.slots)

    def close(self) -> None:
        """Releases all segments."""
        for name in list(self._locks):
            self._release(name)

    def _release(self, name: str) -> None:
        self._locks.pop(name).release()
