"""The recurrent states of a model beside its KV cache: one slot for each running row.

prompts ─▶ PromptRecurrence ─▶ the state after each prompt ─▶ slots of the rows that start from it
rows    ─▶ Recur            ─▶ reads and replaces the state in each row's slot

What a state consists of, and how layers compute with it, is the model family's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Recur = Callable[[int, torch.Tensor, Any], torch.Tensor]
"""Gets the number of a layer among the recurrent ones, its projections `[T, rows of qkv]` and the layer's own
weights; returns `[T, columns of output]`."""


@dataclass(frozen=True, slots=True)
class RecurrentStates:
    """The states of S sequences in L layers."""

    tensors: tuple[torch.Tensor, ...]
    """`[L, S, …]` each."""

    def of(self, index: int) -> "RecurrentStates":
        """Returns the states of one sequence, as views."""
        return RecurrentStates(tuple(tensor[:, index : index + 1] for tensor in self.tensors))

    def clone(self) -> "RecurrentStates":
        """Returns a copy."""
        return RecurrentStates(tuple(tensor.clone() for tensor in self.tensors))

    def store(self, slots: Sequence[int], states: Sequence["RecurrentStates"]) -> None:
        """Copies the states of single sequences into slots."""
        for slot, state in zip(slots, states, strict=True):
            for target, source in zip(self.tensors, state.tensors, strict=True):
                target[:, slot] = source[:, 0]

    def emptied(self) -> "RecurrentStates":
        """Returns states without elements, to free the memory."""
        return RecurrentStates(tuple(tensor.new_empty(0) for tensor in self.tensors))


class PromptRecurrence(Protocol):
    """Runs the recurrent layers over packed prompts; called as `Recur`."""

    @property
    def states(self) -> RecurrentStates | None:
        """The states after the prompts; None if they are not kept."""

    def __call__(self, layer: int, projected: torch.Tensor, own: Any) -> torch.Tensor: ...
