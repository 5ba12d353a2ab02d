"""Registers the job's shared-memory segments with CUDA, so that a GPU reads new weights from them directly.

Otherwise every copy would pass through a small pinned buffer of CUDA's, at a fraction of the bus's speed. To
register a segment takes about as long as to copy it. It is done once for each of the two segments that the
trainer writes in turns; both stay mapped.
"""

import torch

from rlrun.runner.weights.shared_memory import AttachedWeights, tensors_in

_SEGMENTS = 2
"""Number of segments that a trainer writes; a trainer that was started again has new ones."""


class PinnedSegments:
    """The registered segments, by name."""

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}

    def tensors(self, attached: AttachedWeights) -> dict[str, torch.Tensor]:
        """Returns the tensors of an attached segment, in registered memory.

        Raises ValueError if CUDA does not register it.
        """
        if attached.segment not in self._memory:
            while len(self._memory) >= _SEGMENTS:
                self._release(next(iter(self._memory)))
            _register(attached)
            self._memory[attached.segment] = attached.memory
        return tensors_in(self._memory[attached.segment], attached.slots)

    def close(self) -> None:
        """Releases all segments."""
        for name in list(self._memory):
            self._release(name)

    def _release(self, name: str) -> None:
        torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self._memory.pop(name).data_ptr()))


def _register(attached: AttachedWeights) -> None:
    memory, runtime = attached.memory, torch.cuda.cudart()
    error = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error) != 0:
        raise ValueError(
            f"CUDA cannot register the {memory.nbytes / 1e9:.1f} GB of shared memory that hold new weights: "
            f'{runtime.cudaGetErrorString(error)}; use engine.type = "sglang"'
        )
