"""The recurrent state of Gated DeltaNet beside the KV cache: one slot for each running row.

prompts ─▶ PromptRecurrence ─▶ the state after each prompt ─▶ slots of the rows that start from it
rows    ─▶ StepRecurrence   ─▶ reads and replaces the state in each row's slot

A slot holds the last inputs of the convolution, and each head's matrix, for every such layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from rlrun.models.architecture import Architecture
from rlrun.models.attention_shapes import DeltaNet
from rlrun.models.computation.delta_rule import delta_rule, delta_step, document_convolution, log_decay
from rlrun.runner.engines.native.model.cache import zeros
from rlrun.runner.engines.native.model.layer_weights import DeltaWeights


@dataclass(frozen=True, slots=True)
class RecurrentStates:
    """The states of S sequences in L layers."""

    inputs: torch.Tensor
    """`[L, S, C, taps - 1]` in the model's dtype: the last inputs of each channel's convolution."""
    matrices: torch.Tensor
    """`[L, S, N, D, V]` float32"""

    def of(self, index: int) -> "RecurrentStates":
        """Returns the states of one sequence, as a view."""
        return RecurrentStates(self.inputs[:, index : index + 1], self.matrices[:, index : index + 1])

    def clone(self) -> "RecurrentStates":
        """Returns a copy."""
        return RecurrentStates(self.inputs.clone(), self.matrices.clone())

    def store(self, slots: Sequence[int], states: Sequence["RecurrentStates"]) -> None:
        """Copies the states of single sequences into slots."""
        for slot, state in zip(slots, states, strict=True):
            self.inputs[:, slot] = state.inputs[:, 0]
            self.matrices[:, slot] = state.matrices[:, 0]

    def emptied(self) -> "RecurrentStates":
        """Returns states without elements, to free the memory."""
        return RecurrentStates(self.inputs.new_empty(0), self.matrices.new_empty(0))


def make_states(
    model: Architecture, slots: int, dtype: torch.dtype, device: torch.device
) -> RecurrentStates | None:
    """Returns zeroed states for `slots` rows and kept samples, and for padding rows; None without Gated
    DeltaNet.
    """
    if (delta := model.delta) is None:
        return None
    shape = len(delta.layers), slots + 1
    matrices = (*shape, delta.value_heads, delta.key_dim, delta.value_dim)
    return RecurrentStates(
        zeros((*shape, delta.channels, delta.taps - 1), dtype, device), zeros(matrices, torch.float32, device)
    )


class PromptRecurrence:
    """Runs the layers over packed prompts, whose states begin at zero or continue a cached prefix."""

    def __init__(
        self,
        delta: DeltaNet,
        lengths: Sequence[int],
        before: Sequence[RecurrentStates | None] = (),
        *,
        keeps_states: bool,
    ) -> None:
        """`lengths`: of the prompts without their cached prefixes. `before`: the states after those prefixes;
        empty: all prompts begin at zero.
        """
        self._delta, self._lengths = delta, lengths
        self._before = before if any(before) else ()
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] | None = [] if keeps_states else None

    @property
    def states(self) -> RecurrentStates | None:
        """The states after the prompts; None if they are not kept."""
        if self._kept is None:
            return None
        return RecurrentStates(*(torch.stack(tensors) for tensors in zip(*self._kept, strict=True)))

    def __call__(self, layer: int, projected: torch.Tensor, weights: DeltaWeights) -> torch.Tensor:
        """Maps `[T, C + V + 2N]` to heads' outputs `[T, N, V]`; rows behind the prompts are padding."""
        total = sum(self._lengths)
        qkv, decay, beta = _split(projected[:total], self._delta, weights)
        inputs = self._inputs(layer, qkv)
        mixed = self._convolved(inputs, weights.taps)
        query, key, value = _heads(mixed, self._delta)
        matrices = self._matrices(layer, value)
        output, matrices = delta_rule(query, key, value, decay, beta, lengths=self._lengths, before=matrices)
        if self._kept is not None:
            count = self._delta.taps - 1
            self._kept.append((torch.stack([prompt[-count:].t() for prompt in inputs]), matrices))
        return functional.pad(output, (0, 0, 0, 0, 0, len(projected) - total))

    def _inputs(self, layer: int, qkv: torch.Tensor) -> list[torch.Tensor]:
        """Returns the convolution's inputs of each prompt `[taps - 1 + length, C]`, which begin with those
        before it, or with zeros.
        """
        prompts = qkv.split(list(self._lengths))
        zeros = qkv.new_zeros(self._delta.taps - 1, self._delta.channels)
        earlier = [zeros if state is None else state.inputs[layer, 0].t() for state in self._before]
        return [torch.cat(both) for both in zip(earlier or [zeros] * len(prompts), prompts, strict=True)]

    def _convolved(self, inputs: list[torch.Tensor], taps: torch.Tensor) -> torch.Tensor:
        """Returns the output of the convolution for the prompts' own tokens `[T, C]`."""
        lengths = [len(prompt) for prompt in inputs]
        convolved = document_convolution(torch.cat(inputs), taps, lengths).split(lengths)
        return torch.cat([prompt[self._delta.taps - 1 :] for prompt in convolved])

    def _matrices(self, layer: int, value: torch.Tensor) -> torch.Tensor | None:
        """Returns the matrices that the prompts begin with `[prompts, N, D, V]`; None: all are zero."""
        if not self._before:
            return None
        delta = self._delta
        zeros = torch.zeros(
            delta.value_heads, delta.key_dim, delta.value_dim, dtype=torch.float32, device=value.device
        )
        return torch.stack([zeros if state is None else state.matrices[layer, 0] for state in self._before])


class StepRecurrence:
    """Runs the layers over one token of every row, and replaces the rows' states."""

    def __init__(self, delta: DeltaNet, states: RecurrentStates, slots: torch.Tensor) -> None:
        """`slots` `[M]`: the slot of each row."""
        self._delta, self._states, self._slots = delta, states, slots

    def __call__(self, layer: int, projected: torch.Tensor, weights: DeltaWeights) -> torch.Tensor:
        """Maps `[M, C + V + 2N]` to heads' outputs `[M, N, V]`."""
        inputs, matrices = self._states.inputs[layer], self._states.matrices[layer]
        qkv, decay, beta = _split(projected, self._delta, weights)
        window = torch.cat((inputs[self._slots], qkv[..., None]), -1)
        inputs[self._slots] = window[..., 1:]
        # Adds the newest input first, as `document_convolution` does, so that both round alike.
        total = window[..., -1] * weights.taps[:, -1]
        for back in range(2, self._delta.taps + 1):
            total = total + window[..., -back] * weights.taps[:, -back]
        query, key, value = _heads(functional.silu(total), self._delta)
        output, changed = delta_step(query, key, value, decay, beta, state=matrices[self._slots])
        matrices[self._slots] = changed
        return output


def _split(
    projected: torch.Tensor, delta: DeltaNet, weights: DeltaWeights
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns queries, keys and values `[T, C]`, and decay and beta `[T, N]`."""
    heads = delta.value_heads
    qkv, _, b, a = projected.split((delta.channels, delta.values, heads, heads), -1)
    return qkv, log_decay(a, weights.a_log, weights.dt_bias), b.sigmoid()


def _heads(mixed: torch.Tensor, delta: DeltaNet) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns queries and keys `[T, K, D]` and values `[T, N, V]`, which are one after the other."""
    keys = delta.key_heads * delta.key_dim
    query, key, value = mixed.split((keys, keys, delta.values), -1)
    query, key = (x.unflatten(1, (delta.key_heads, -1)) for x in (query, key))
    return query, key, value.unflatten(1, (delta.value_heads, -1))
