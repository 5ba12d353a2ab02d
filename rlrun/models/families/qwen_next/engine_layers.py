"""Gated DeltaNet and gated attention in the native engine: the layers of Qwen3-Next and Qwen3.5.

hidden ─▶ queries, keys, values ─convolution, delta rule─▶ norm, gated ─▶ out_proj        three layers of four
hidden ─▶ queries with gates, keys, values ─RoPE, attention─▶ gated ─▶ o_proj       the fourth

A sequence's state has the last inputs of the convolution, and each head's matrix, for every layer with Gated
DeltaNet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from rlrun.models.architecture import Architecture, DeltaNet
from rlrun.models.computation.delta_rule import delta_rule, delta_step, document_convolution, log_decay
from rlrun.runner.engines.native.model import torch_ops
from rlrun.runner.engines.native.model.cache import zeros
from rlrun.runner.engines.native.model.engine_parts import EngineParts
from rlrun.runner.engines.native.model.layer_tensors import LayerTensors, join
from rlrun.runner.engines.native.model.layer_weights import AttentionWeights
from rlrun.runner.engines.native.model.recurrent import RecurrentStates


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """The weights of Gated DeltaNet beside its projections, which are `qkv` and `output` of `LayerWeights`.

    `qkv` `[C + V + 2N, H]` has the rows of queries, keys and values, of the gate, of beta and of the decay,
    each for all heads. Qwen3-Next stores them head by head, so that its matrix is a copy.
    """

    taps: torch.Tensor
    """`[C, taps]`"""
    a_log: torch.Tensor
    """`[N]`"""
    dt_bias: torch.Tensor
    norm: torch.Tensor
    """`[V]` of each head's output."""


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """The weights of a layer that other families do not have."""

    delta: DeltaWeights | None
    """None in layers with attention."""
    shared_gate: torch.Tensor | None
    """`[1, H]`, whose product is the gate of the shared expert's output; None without experts."""


class Parts(EngineParts):
    """The parts of a decoder with Gated DeltaNet and gated attention."""

    def attention_weights(self, tensors: LayerTensors, layer: int) -> AttentionWeights:
        """Returns the weights of gated attention, or the projections of Gated DeltaNet."""
        delta = self.model.delta
        if delta is None or not self.model.is_delta(layer):
            return super().attention_weights(tensors, layer)
        return AttentionWeights(
            qkv=_delta_projections(tensors, delta), output=tensors("linear_attn.out_proj.weight")
        )

    def own_weights(self, tensors: LayerTensors, layer: int) -> OwnWeights:
        """Returns the weights of Gated DeltaNet, and the gate of the shared expert."""
        return OwnWeights(
            delta=_delta_weights(tensors) if self.model.is_delta(layer) else None,
            shared_gate=tensors("mlp.shared_expert_gate.weight") if self.model.is_sparse(layer) else None,
        )

    def attention(
        self, projected: torch.Tensor, own: OwnWeights, attend: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Returns the output of attention, times the sigmoid of its gates.

        In `projected` each head has its queries, then its gates; keys and values follow.
        """
        queries = 2 * self.model.heads
        heads = projected.view(len(projected), -1, self.model.head_dim)
        qkv = torch.cat((heads[:, :queries:2], heads[:, queries:]), 1)
        gate = heads[:, 1:queries:2].flatten(1)
        return attend(qkv) * gate.sigmoid()

    def shared_experts(self, normed: torch.Tensor, output: torch.Tensor, own: OwnWeights) -> torch.Tensor:
        """Returns the output times its gate."""
        assert own.shared_gate is not None
        return torch_ops.linear(normed, own.shared_gate, None).sigmoid() * output

    def is_recurrent(self, layer: int) -> bool:
        """Returns whether a layer has Gated DeltaNet."""
        return self.model.is_delta(layer)

    def make_states(self, slots: int, dtype: torch.dtype, device: torch.device) -> RecurrentStates | None:
        """Returns zeroed states; `dtype`: the model's."""
        if (delta := self.model.delta) is None:
            return None
        shape = len(delta.layers), slots + 1
        matrices = (*shape, delta.value_heads, delta.key_dim, delta.value_dim)
        inputs = (*shape, delta.channels, delta.taps - 1)
        return RecurrentStates((zeros(inputs, dtype, device), zeros(matrices, torch.float32, device)))

    def prompt_recurrence(
        self, lengths: Sequence[int], before: Sequence[RecurrentStates | None], *, keeps_states: bool
    ) -> "PromptDeltaNet | None":
        """Returns Gated DeltaNet over packed prompts."""
        if self.model.delta is None:
            return None
        return PromptDeltaNet(self.model, self.model.delta, lengths, before, keeps_states=keeps_states)

    def step_recurrence(self, states: RecurrentStates, slots: torch.Tensor) -> "StepDeltaNet | None":
        """Returns Gated DeltaNet over one token of each row."""
        return StepDeltaNet(self.model, self.model.delta, states, slots) if self.model.delta else None


class PromptDeltaNet:
    """Runs the layers over packed prompts, whose states begin at zero or continue a cached prefix."""

    def __init__(
        self,
        model: Architecture,
        delta: DeltaNet,
        lengths: Sequence[int],
        before: Sequence[RecurrentStates | None],
        *,
        keeps_states: bool,
    ) -> None:
        self._model, self._delta, self._lengths = model, delta, lengths
        self._before = [state.tensors if state else None for state in before] if any(before) else []
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] | None = [] if keeps_states else None

    @property
    def states(self) -> RecurrentStates | None:
        """The states after the prompts; None if they are not kept."""
        if self._kept is None:
            return None
        return RecurrentStates(tuple(torch.stack(tensors) for tensors in zip(*self._kept, strict=True)))

    def __call__(self, layer: int, projected: torch.Tensor, own: OwnWeights) -> torch.Tensor:
        """Maps `[T, C + V + 2N]` to gated outputs `[T, N · V]`; rows behind the prompts are padding."""
        assert own.delta is not None
        total = sum(self._lengths)
        qkv, decay, beta = _split(projected[:total], self._delta, own.delta)
        inputs = self._inputs(layer, qkv)
        mixed = self._convolved(inputs, own.delta.taps)
        query, key, value = _heads(mixed, self._delta)
        matrices = self._matrices(layer, value)
        output, matrices = delta_rule(query, key, value, decay, beta, lengths=self._lengths, before=matrices)
        if self._kept is not None:
            count = self._delta.taps - 1
            self._kept.append((torch.stack([prompt[-count:].t() for prompt in inputs]), matrices))
        output = functional.pad(output, (0, 0, 0, 0, 0, len(projected) - total))
        return _gated(output, projected, own.delta, self._model)

    def _inputs(self, layer: int, qkv: torch.Tensor) -> list[torch.Tensor]:
        """Returns the convolution's inputs of each prompt `[taps - 1 + length, C]`, which begin with those
        before it, or with zeros.
        """
        prompts = qkv.split(list(self._lengths))
        zeros = qkv.new_zeros(self._delta.taps - 1, self._delta.channels)
        earlier = [zeros if state is None else state[0][layer, 0].t() for state in self._before]
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
        return torch.stack([zeros if state is None else state[1][layer, 0] for state in self._before])


class StepDeltaNet:
    """Runs the layers over one token of every row, and replaces the rows' states."""

    def __init__(
        self, model: Architecture, delta: DeltaNet, states: RecurrentStates, slots: torch.Tensor
    ) -> None:
        self._model, self._delta, self._slots = model, delta, slots
        self._inputs, self._matrices = states.tensors

    def __call__(self, layer: int, projected: torch.Tensor, own: OwnWeights) -> torch.Tensor:
        """Maps `[M, C + V + 2N]` to gated outputs `[M, N · V]`."""
        assert own.delta is not None
        inputs, matrices, taps = self._inputs[layer], self._matrices[layer], own.delta.taps
        qkv, decay, beta = _split(projected, self._delta, own.delta)
        window = torch.cat((inputs[self._slots], qkv[..., None]), -1)
        inputs[self._slots] = window[..., 1:]
        # Adds the newest input first, as `document_convolution` does, so that both round alike.
        total = window[..., -1] * taps[:, -1]
        for back in range(2, self._delta.taps + 1):
            total = total + window[..., -back] * taps[:, -back]
        query, key, value = _heads(functional.silu(total), self._delta)
        output, changed = delta_step(query, key, value, decay, beta, state=matrices[self._slots])
        matrices[self._slots] = changed
        return _gated(output, projected, own.delta, self._model)


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


def _gated(
    output: torch.Tensor, projected: torch.Tensor, weights: DeltaWeights, model: Architecture
) -> torch.Tensor:
    """Returns the heads' outputs `[T, N, V]` normed, and times the SiLU of their gates `[T, N · V]`."""
    assert model.delta is not None
    first = model.delta.channels
    gate = projected[:, first : first + model.delta.values].reshape(output.shape)
    normed = torch_ops.rms_norm(output, weights.norm, model.norm_eps)
    return (normed * functional.silu(gate.float())).to(projected.dtype).flatten(1)


def _delta_projections(tensors: LayerTensors, delta: DeltaNet) -> torch.Tensor:
    if not delta.by_head:
        return join([tensors(f"linear_attn.in_proj_{name}.weight") for name in ("qkv", "z", "b", "a")])
    by_head = tensors("linear_attn.in_proj_qkvz.weight").unflatten(0, (delta.key_heads, -1))
    parts = list(by_head.split((*delta.rows, delta.rows[2]), 1))
    parts += tensors("linear_attn.in_proj_ba.weight").unflatten(0, (delta.key_heads, -1)).chunk(2, 1)
    return torch.cat([part.flatten(0, 1) for part in parts])


def _delta_weights(tensors: LayerTensors) -> DeltaWeights:
    taps = tensors("linear_attn.conv1d.weight").squeeze(1)
    vectors = (tensors(f"linear_attn.{name}") for name in ("A_log", "dt_bias", "norm.weight"))
    return DeltaWeights(taps, *vectors)
