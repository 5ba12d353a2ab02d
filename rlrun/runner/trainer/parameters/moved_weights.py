"""Refuses to hand engines the weights that they already have after the adapters were trained.

An engine that is sent the frozen model at every update generates from the first policy for the whole run,
which looks like staleness (verl's issue 7495). So each update is compared with the one before it:

    second factors changed since the last update, on this rank ─┬─▶ some tensor must differ ─▶ else an error
    sums of the bits of each merged matrix that is sent, or of  │
    each second factor where adapters are sent alone ───────────┘

Only second factors count: the first ones may decay while the second are still zero, which changes no matrix.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from rlrun.runner.trainer.compat.meshes import local_part
from rlrun.runner.trainer.parameters.gathering import Present

Tensors = Iterator[tuple[str, torch.Tensor]]
Gather = Callable[[torch.dtype | None], Tensors]


class MovedWeights:
    """Compares the merged matrices of one update with those of the update before."""

    def __init__(
        self, factors: Sequence[torch.Tensor], matrices: Collection[str], last: str, present: Present
    ) -> None:
        """`factors` are the adapters' second factors, which `present` makes readable. `matrices` are the
        Hugging Face names of the adapted matrices, and `last` is that of the last tensor of an update.
        """
        self._factors, self._matrices, self._last = factors, matrices, last
        self._present = present
        self._trained: list[int] | None = None
        self._sent: list[int] = []

    def watch(self, gather: Gather, dtype: torch.dtype | None = None) -> Tensors:
        """Yields the gathered tensors. Raises RuntimeError before the last one, if the adapters have changed
        and no matrix has.
        """
        trained = [_bit_sum(self._present(factor)) for factor in self._factors]
        sent: list[torch.Tensor] = []
        for name, tensor in gather(dtype):
            if name in self._matrices and len(tensor):
                sent.append(_bit_sum(tensor))
            if name == self._last:
                self._compare(_read(trained), _read(sent))
            yield name, tensor

    def _compare(self, trained: list[int], sent: list[int]) -> None:
        if self._trained not in (None, trained) and sent and sent == self._sent:
            raise RuntimeError(
                "the adapters were trained since the last update of the engines, but what is sent has not "
                "changed: engines would go on generating from an old policy. If the learning rate is so low "
                "that engine.dtype rounds every change away, raise it"
            )
        self._trained, self._sent = trained, sent


def _bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the sum of a tensor's elements as integers, which changes if a few of them change: a scalar on
    its device.
    """
    part = local_part(tensor).detach().contiguous()
    integers = part.view({2: torch.int16, 4: torch.int32}[part.itemsize])
    return integers.sum(dtype=torch.int64)


def _read(sums: Sequence[torch.Tensor]) -> list[int]:
    """Returns the sums; the host waits for the device once for all of them."""
    return torch.stack(list(sums)).tolist() if sums else []
