"""A model's parameters: float32 masters, the copies that the model computes with, and their HF tensors.

On a single rank that computes in bfloat16, or keeps its parameters in host memory, the model has copies of
the masters, which are refreshed once per optimizer step; gradients are added up in float32 on the masters.
Everywhere else the model's own parameters are the masters, because FSDP casts and fetches by itself.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.converters.tensors.int4_groups import rounded_to_int4
from rlrun.models.adapters import LoraShape, adapter_tensors, adapters
from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.low_precision import is_int4_matrix
from rlrun.models.tensor_names import hf_tensors, mtp_tensors
from rlrun.runner.trainer.compat.meshes import local_part, mesh_device
from rlrun.runner.trainer.parameters.gathering import (
    Gathering,
    Present,
    as_it_is,
)
from rlrun.runner.trainer.parameters.stored_layout import by_parameter, copy_part, to_parameter
from rlrun.runner.trainer.transfers import host_copy, host_empty, wait

_CHECKPOINT_PREFIX = "_checkpoint_wrapped_module."
"""Torch inserts it into the names of layers whose activations are recomputed."""
EMBEDDING, HEAD = "tok_embeddings.weight", "lm_head.weight"
EXPERT_BIAS = ".moe.expert_bias_E"
"""The names of the biases that balance the load of experts end in this."""
_Tensors = Iterator[tuple[str, torch.Tensor]]


class Parameters:
    """The parameters of a model built by `build_model`, by torchtitan's names.

    On a pipeline these are the parameters of this rank's stages. A tied head on another stage than its
    embedding is a separate parameter there, named in `copies`.
    """

    def __init__(
        self,
        decoders: Sequence[nn.Module],
        model: Architecture,
        *,
        stages: dist.ProcessGroup | None = None,
        tensors: list[HfTensor] | None = None,
        trained: bool = True,
        on_host: bool = False,
        biases: bool | None = None,
        lora: LoraShape | None = None,
        int4_group: int | None = None,
    ) -> None:
        """`stages` is the process group of the pipeline's ranks. `tensors` are the model's own, unless it has
        another head than a policy. Without `trained` there are no masters. `on_host` keeps masters, and with
        them gradients, in host memory. `biases`: the experts' biases change, and are gathered with their
        current values (True) or as they were loaded (False); None: they do not change. `lora`: the model has
        adapters, and only these are trained and saved. `int4_group`: the model multiplies with matrices that
        are rounded in groups of this many numbers, and rounded ones are gathered.
        """
        self._tensors = tensors or hf_tensors(model)
        known = set(self._tensors)
        possible = adapters(model, lora) if lora else []
        own_adapters = [each for each in possible if known.issuperset(each.matrices)]
        self._adapter_tensors = adapter_tensors(own_adapters)
        self.adapters = frozenset(tensor.parameter for tensor in self._adapter_tensors)
        self.adapted = frozenset(tensor.name for adapter in own_adapters for tensor in adapter.matrices)
        self._compute, buffers = _named_tensors(decoders)
        expected = {tensor.parameter for tensor in self._tensors}
        self._fixed = {name: buffer for name, buffer in buffers.items() if name in expected}
        self._biases = {
            name: buffer
            for name, buffer in buffers.items()
            if biases is not None and name.endswith(EXPERT_BIAS)
        }
        self._loaded_biases: dict[str, torch.Tensor] | None = {} if biases is False else None
        self.mtp = frozenset(tensor.parameter for tensor in mtp_tensors(model))
        """The names of the MTP layer's parameters, which are not part of the policy."""
        self.copies = frozenset((HEAD,) if model.tied and HEAD in self._compute else ())
        own_names = (self._compute.keys() | self._fixed.keys()) - self.copies
        self.stages = stages
        self._base = lora.base if lora else None
        self.int4_group = int4_group
        self._round = no_rounding if int4_group is None else _round_matrices(model, int4_group)
        self._gathering = Gathering(
            self._tensors,
            own_names,
            stages,
            mesh_device(next(iter(self._compute.values()))),
            adapters=own_adapters,
            scale=lora.scale if lora else 1.0,
            base=self._base,
        )
        self.masters: dict[str, nn.Parameter] = dict(self._compute)
        if trained and self._needs_masters(on_host):
            self.masters |= _masters_of(self._trainable, on_host)

    def _needs_masters(self, on_host: bool) -> bool:
        """Returns whether the optimizer needs copies in float32, or on the host.

        FSDP's DTensors are float32 masters already: it casts them when it gathers a layer.
        """
        sharded = any(isinstance(parameter, DTensor) for parameter in self._compute.values())
        low_precision = any(parameter.dtype != torch.float32 for parameter in self._trainable.values())
        return not sharded and (low_precision or on_host)

    @property
    def _trainable(self) -> dict[str, nn.Parameter]:
        """The adapters, or every parameter of a model that has none."""
        if not self.adapters:
            return self._compute
        return {name: parameter for name, parameter in self._compute.items() if name in self.adapters}

    @property
    def holders(self) -> tuple[dict[str, nn.Parameter], ...]:
        """Two tables: the parameters that the model computes with, and the masters."""
        return self._compute, self.masters

    @property
    def computing(self) -> dict[str, torch.Tensor]:
        """The tensors that the model computes with, except copies of a tied embedding."""
        return {name: tensor for name, tensor in self._swapping.items() if name not in self.copies}

    @property
    def saved(self) -> dict[str, torch.Tensor]:
        """The tensors of a checkpoint: masters and balancing biases, except copies of a tied embedding."""
        masters = {name: self.masters[name] for name in self._trainable if name not in self.copies}
        return masters | self._biases

    @property
    def _swapping(self) -> dict[str, torch.Tensor]:
        """The tensors that differ between two policies of one architecture, without those of an MTP layer."""
        tensors = self._trainable | self._biases
        return {name: tensor for name, tensor in tensors.items() if name not in self.mtp}

    @property
    def held(self) -> list[torch.Tensor]:
        """Every tensor that takes memory on this rank."""
        return [*self._compute.values(), *self.masters.values()]

    @property
    def stage_of(self) -> dict[str, int]:
        """The pipeline rank that has each HF tensor, by name."""
        return self._gathering.stage_of

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every HF tensor, in order."""
        return {tensor.name: tensor.shape for tensor in self._tensors}

    @torch.no_grad()
    def load(self, read: Callable[[HfTensor], torch.Tensor]) -> None:
        """Fills every parameter from HF tensors. Each rank keeps its part, and has one whole parameter in
        memory at a time.
        """
        tensors_of = by_parameter([*self._tensors, *self._adapter_tensors])
        for name, master in (self.masters | self._fixed).items():
            tensors = tensors_of[EMBEDDING if name in self.copies else name]
            if tensors[0].expert is None:
                full = to_parameter(tensors[0], read(tensors[0]))
            else:
                full = torch.stack([read(tensor) for tensor in tensors])
            copy_part(master, full, self._base)
        if self._loaded_biases is not None:
            names = self._fixed.keys() & self._biases.keys()
            self._loaded_biases = {name: self._fixed[name].detach().clone() for name in names}
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the masters' current values to the parameters that the model computes with."""
        pairs = [
            (compute, self.masters[name])
            for name, compute in self._compute.items()
            if compute is not self.masters[name]
        ]
        if pairs:
            computes, masters = zip(*pairs, strict=True)
            torch._foreach_copy_(computes, masters, non_blocking=True)

    def wait_for_gradients(self) -> None:
        """Waits until the gradients of masters in host memory have arrived there; elsewhere does nothing."""
        for name, compute in self._compute.items():
            device = mesh_device(compute)
            if device.type != self.masters[name].device.type:
                wait(device)
                return

    @torch.no_grad()
    def gather(
        self,
        dtype: torch.dtype | None = None,
        present: Present = as_it_is,
        names: Collection[str] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every HF tensor, or those of `names`, in full on the first rank, in `dtype` or float32 (see
        `Gathering.run`). Adapters are merged into their matrices.
        """
        yield from self._round(self._gathering.run(self._exported, dtype, present, names=names))

    @torch.no_grad()
    def gather_stage(
        self,
        dtype: torch.dtype | None = None,
        present: Present = as_it_is,
        names: Collection[str] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields this pipeline stage's HF tensors in full on all of its ranks (see `Gathering.run_stage`)."""
        yield from self._round(self._gathering.run_stage(self._exported, dtype, present, names))

    @torch.no_grad()
    def gather_base(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields what `gather` yields, without the adapters: the frozen model."""
        yield from self._gathering.run(self._exported, dtype, merged=False)

    @torch.no_grad()
    def gather_adapters(
        self, dtype: torch.dtype | None = torch.float32
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every tensor of the adapters in full on the first rank, by peft's names, in `dtype`."""
        yield from self._gathering.run_adapters(self.masters, dtype)

    @property
    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of the adapters, by peft's names, in order."""
        return {tensor.name: tensor.shape for tensor in self._adapter_tensors}

    @property
    def is_base_bfloat16(self) -> bool:
        """Whether bfloat16 holds the frozen model without loss."""
        frozen = [tensor for name, tensor in self._exported.items() if name not in self.adapters]
        return all(tensor.dtype == torch.bfloat16 for tensor in frozen)

    @property
    def _exported(self) -> dict[str, torch.Tensor]:
        return self.masters | self._fixed | (self._loaded_biases or {})

    def host_copy(self) -> dict[str, torch.Tensor]:
        """Returns a copy in host memory of this rank's part of the tensors that the model computes with. The
        device still fills it: call `transfers.wait` before reading it on the host.
        """
        return {name: host_copy(local_part(tensor)) for name, tensor in self._swapping.items()}

    @contextmanager
    def swapped(self, weights: dict[str, torch.Tensor]) -> Iterator[None]:
        """Makes the model compute with `weights`, an earlier `host_copy`, within the context.

        A GPU copies in the order of its other work, so the host waits neither here nor at the end.
        """
        current = self.host_copy()
        self._put(weights)
        try:
            yield
        finally:
            self._put(current)

    @torch.no_grad()
    def _put(self, values: dict[str, torch.Tensor]) -> None:
        for name, tensor in self._swapping.items():
            local_part(tensor).copy_(values[name], non_blocking=True)


def plain_name(name: str) -> str:
    """Returns a parameter's name without the prefixes that torch inserts."""
    return name.replace(_CHECKPOINT_PREFIX, "")


def _named_tensors(
    decoders: Sequence[nn.Module],
) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
    """Returns the parameters and the buffers of this rank's stages, by name."""
    parameters = {plain_name(name): each for decoder in decoders for name, each in decoder.named_parameters()}
    buffers = {plain_name(name): each for decoder in decoders for name, each in decoder.named_buffers()}
    return parameters, buffers


# Float32 masters of parameters that a single rank computes with in bfloat16, or holds on the host.
#
# Gathered from them, matrices are rounded as the model rounds them for its products (`trainer.precision =
# "int4_qat"`).
def _masters_of(parameters: dict[str, nn.Parameter], on_host: bool) -> dict[str, nn.Parameter]:
    """Returns float32 masters of parameters; gradients are moved to them as soon as they are complete."""
    masters = {name: nn.Parameter(_master_of(parameter, on_host)) for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        parameter.register_post_accumulate_grad_hook(_gradient_mover(masters[name]))
    return masters


def _master_of(parameter: nn.Parameter, on_host: bool) -> torch.Tensor:
    if on_host:
        return host_empty(parameter.shape, torch.float32, parameter.device)
    return torch.empty_like(parameter, dtype=torch.float32)


def _gradient_mover(master: nn.Parameter) -> Callable[[torch.Tensor], None]:
    """Returns a hook that adds a parameter's new gradient to its float32 master and frees it."""

    def move(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if master.device != parameter.device:
            add_on_host(master, parameter.grad)
        elif master.grad is None:
            master.grad = parameter.grad.to(torch.float32)
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    return move


def add_on_host(master: nn.Parameter, gradient: torch.Tensor) -> None:
    """Adds a gradient on a GPU to that of a master in host memory, in the order of the GPU's work.

    The GPU adds, so that the host need not wait for the gradient to arrive.
    """
    total = gradient.to(torch.float32)
    if master.grad is None:
        master.grad = host_empty(master.shape, torch.float32, gradient.device)
    else:
        total = total + master.grad.to(gradient.device, non_blocking=True)
    master.grad.copy_(total, non_blocking=True)


def no_rounding(tensors: _Tensors) -> _Tensors:
    """Returns the tensors as they are."""
    return tensors


def _round_matrices(model: Architecture, group: int) -> Callable[[_Tensors], _Tensors]:
    """Returns a function that rounds the matrices that INT4 engines have in four bits, by their names.

    The model rounds what FSDP has cast to bfloat16, and so does this; float32 holds the results without loss.
    """
    routed = bool(model.experts)

    def rounded(tensors: _Tensors) -> _Tensors:
        for name, tensor in tensors:
            if len(tensor) and is_int4_matrix(name, routed=routed):  # those of other stages are empty
                yield name, rounded_to_int4(tensor.bfloat16(), group).to(tensor.dtype)
            else:
                yield name, tensor

    return rounded


def freeze(
    tensors: Sequence[HfTensor],
    patterns: Sequence[str],
    *holders: Mapping[str, nn.Parameter],
) -> set[str]:
    """Turns gradients off for the parameters that the patterns match; returns their names.

    `tensors` are those of the whole model, on whatever rank; `holders` are tables of this rank's parameters
    by torchtitan's name. ValueError for a pattern that matches nothing, for patterns that match some experts
    of a layer but not all, and for patterns that match everything.
    """
    for pattern in patterns:
        if not any(fnmatchcase(tensor.name, pattern) for tensor in tensors):
            raise ValueError(
                f'trainer.freeze: "{pattern}" matches no parameter; names look like {tensors[0].name}'
            )
    verdicts: defaultdict[str, set[bool]] = defaultdict(set)
    for tensor in tensors:
        frozen = any(fnmatchcase(tensor.name, pattern) for pattern in patterns)
        verdicts[tensor.parameter].add(frozen)
    if split := [name for name, answers in verdicts.items() if len(answers) > 1]:
        raise ValueError(
            f"trainer.freeze matches only some of the experts in {split[0]}, which are one parameter: match "
            "all or none of them"
        )
    names = {name for name, answers in verdicts.items() if True in answers}
    if names == verdicts.keys():
        raise ValueError("trainer.freeze matches every parameter, so nothing would be trained")
    for name in names:
        for parameters in holders:
            if name in parameters:
                parameters[name].requires_grad_(False)
    return names
