"""Gathers whole HF tensors from their parts on all ranks and pipeline stages.

parts of a parameter ─▶ whole, on every rank of its stage ─▶ HF tensors, expert by expert     run_stage
                                            └─▶ on rank 0 ─▶ HF tensors, expert by expert     run
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rlrun.converters.families.merged_weights import merge_factors
from rlrun.converters.tensors.base_blocks import BaseKind, decode
from rlrun.converters.tensors.precision import keeps_precision
from rlrun.models.adapters import Adapter, AnyAdapter, ExpertAdapter, adapter_tensors
from rlrun.models.hf_tensor import HfTensor
from rlrun.runner.trainer.parameters.stored_layout import by_parameter, to_stored

Whole = Callable[[str, tuple[int, ...]], torch.Tensor]
"""Returns a parameter in full, by its name and shape."""
WholeInDtype = Callable[[str, tuple[int, ...], torch.dtype | None], torch.Tensor]
"""Returns a parameter in full, by its name and shape, in the given dtype or its own."""

Present = Callable[[torch.Tensor], torch.Tensor]
"""Returns a parameter whose content can be read, where its own storage may be empty."""


def as_it_is(parameter: torch.Tensor) -> torch.Tensor:
    return parameter


class Gathering:
    """Gathers a model's parameters; knows which pipeline rank has which of them."""

    def __init__(
        self,
        tensors: Sequence[HfTensor],
        names: Iterable[str],
        stages: dist.ProcessGroup | None,
        device: torch.device,
        *,
        adapters: Sequence[AnyAdapter] = (),
        scale: float = 1.0,
        base: BaseKind | None = None,
    ) -> None:
        """`names` are the parameters that this rank owns. `stages` is the process group of the pipeline's
        ranks, if there is a pipeline; all of them create this object together. `device` receives the tensors
        of other stages: a stage may have none of those that are gathered. `adapters`, with their `scale`, are
        merged into the matrices that they belong to. `base`: how parameters that consist of bytes hold
        matrices.
        """
        self._tensors, self._stages, self._device = tensors, stages, device
        self._adapted = {matrix.parameter: adapter for adapter in adapters for matrix in adapter.matrices}
        self._adapter_tensors = adapter_tensors(adapters)
        self._scale, self._base = scale, base
        self._never_cast = {tensor.parameter for tensor in tensors if keeps_precision(tensor.name)}
        self._owners = _owners(names, stages)
        expected = [*tensors, *self._adapter_tensors]
        assert self._owners.keys() == {tensor.parameter for tensor in expected}
        self._stage = 0 if stages is None else dist.get_rank(stages)

    @property
    def stage_of(self) -> dict[str, int]:
        """The pipeline rank that has each HF tensor, by name."""
        return {tensor.name: self._owners[tensor.parameter] for tensor in self._tensors}

    def run(
        self,
        held: Mapping[str, torch.Tensor],
        dtype: torch.dtype | None = None,
        present: Present = as_it_is,
        *,
        merged: bool = True,
        names: Collection[str] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every HF tensor in full on rank 0, in order.

        Gathering is collective, so all ranks must iterate to the end. Other ranks get an empty tensor for a
        tensor of another stage. At most one layer's experts are whole at a time. `dtype`: every rank casts
        its part before it sends it, which gives the same numbers as casting the whole tensor. A matrix with
        an adapter is merged with it in float32, and cast afterwards; without `merged` adapters are left out.
        `present`: is called with each of `held` before it is read. `names`: of the HF tensors to gather.
        """
        whole = partial(self._whole, held, present=present)
        tensors = _chosen(self._tensors, names)
        if not merged:
            return _hf_tensors(tensors, lambda name, shape: whole(name, shape, self._sent(name, dtype)))
        return _hf_tensors(tensors, self._merged(whole, dtype))

    def run_adapters(
        self, held: Mapping[str, torch.Tensor], dtype: torch.dtype | None = torch.float32
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the adapters' tensors in full on rank 0, by peft's names; collective as `run`."""
        return _hf_tensors(
            self._adapter_tensors, lambda name, shape: self._whole(held, name, shape, dtype, as_it_is)
        )

    def run_stage(
        self,
        held: Mapping[str, torch.Tensor],
        dtype: torch.dtype | None = None,
        present: Present = as_it_is,
        names: Collection[str] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the HF tensors of this rank's pipeline stage in full, in order, on every rank of the stage.

        Only the ranks of the stage take part, and all of them must. `dtype`, `present`, `names`: see `run`.
        """
        tensors = _chosen(self._tensors, names)
        stage_tensors = [tensor for tensor in tensors if self._owners[tensor.parameter] == self._stage]
        return _hf_tensors(
            stage_tensors,
            self._merged(lambda name, shape, dtype: _full(present(held[name]), dtype, self._base), dtype),
        )

    def _merged(self, whole: WholeInDtype, dtype: torch.dtype | None) -> Whole:
        """Returns a function that gathers a parameter in `dtype`, merged with its adapter if it has one."""
        # gate and up of experts follow each other and have the same adapter, whose factors are gathered once
        last: tuple[AnyAdapter, list[torch.Tensor]] | None = None

        def factors_of(adapter: AnyAdapter) -> list[torch.Tensor]:
            nonlocal last
            if last is None or last[0] is not adapter:
                pair = (adapter.down, adapter.up)
                factors = [whole(factor.parameter, factor.parameter_shape, torch.float32) for factor in pair]
                last = adapter, factors
            return last[1]

        def gather(name: str, shape: tuple[int, ...]) -> torch.Tensor:
            adapter = self._adapted.get(name)
            if adapter is None:
                return whole(name, shape, self._sent(name, dtype))
            matrix = whole(name, shape, torch.float32)
            # masters may be in host memory while the frozen matrix is not
            down, up = (factor.to(matrix.device, non_blocking=True) for factor in factors_of(adapter))
            # an empty tensor belongs to another stage
            merged = _merge(adapter, name, matrix, up, down, self._scale) if len(matrix) else matrix
            return merged if dtype is None else merged.to(dtype)

        return gather

    def _sent(self, name: str, dtype: torch.dtype | None) -> torch.dtype | None:
        """Returns the dtype in which a parameter is sent: rounding the bias by which a router chooses experts
        would choose others.
        """
        return torch.float32 if name in self._never_cast else dtype

    def _whole(
        self,
        held: Mapping[str, torch.Tensor],
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        present: Present,
    ) -> torch.Tensor:
        """Returns a parameter in full on its stage's ranks and on rank 0; elsewhere an empty tensor."""
        owner = self._owners[name]
        is_owner = owner == self._stage
        full = _full(present(held[name]), dtype, self._base) if is_owner else torch.empty(0)
        # of the pipelines only the one that contains rank 0 sends: the others have the same parameters
        if self._stages is None or owner == 0 or 0 not in dist.get_process_group_ranks(self._stages):
            return full
        if is_owner:
            dist.send(full.contiguous(), group=self._stages, group_dst=0)
        elif self._stage == 0:
            full = torch.empty(shape, dtype=dtype, device=self._device)
            dist.recv(full, group=self._stages, group_src=owner)
        return full


def _chosen(tensors: Sequence[HfTensor], names: Collection[str] | None) -> Sequence[HfTensor]:
    return tensors if names is None else [tensor for tensor in tensors if tensor.name in names]


def _merge(  # noqa: PLR0917
    adapter: AnyAdapter,
    parameter: str,
    matrix: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Returns a parameter with its adapter added; experts are merged one after the other."""
    if isinstance(adapter, Adapter):
        return merge_factors(matrix, up, down, scale)
    merged = torch.empty_like(matrix)
    for expert in range(adapter.experts):
        merged[expert] = merge_expert(adapter, parameter, expert, matrix[expert], up, down, scale)
    return merged


def merge_expert(  # noqa: PLR0917
    adapter: ExpertAdapter,
    parameter: str,
    expert: int,
    matrix: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Returns one expert's float32 matrix of a parameter with its adapter added.

    `up` and `down` are the factors of all experts, as the trainer has them.
    """
    part = up.unflatten(1, (-1, adapter.halves))[expert, :, adapter.half_of(parameter)]
    return merge_factors(matrix, part.contiguous(), down[expert].t().contiguous(), scale)


def _hf_tensors(tensors: Sequence[HfTensor], whole: Whole) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields HF tensors in order, each parameter gathered once by `whole`."""
    tensors_of = by_parameter(tensors)
    stacks: dict[str, torch.Tensor] = {}
    for tensor in tensors:
        if tensor.expert is None:
            stacks.clear()
            yield tensor.name, to_stored(tensor, whole(tensor.parameter, tensor.parameter_shape))
            continue
        if tensor.parameter not in stacks:
            shape = (len(tensors_of[tensor.parameter]), *tensor.shape)
            stacks[tensor.parameter] = whole(tensor.parameter, shape)
        stack = stacks[tensor.parameter]
        yield tensor.name, stack[tensor.expert] if len(stack) else stack


def _owners(names: Iterable[str], stages: dist.ProcessGroup | None) -> dict[str, int]:
    """Returns the pipeline rank of each parameter, by name."""
    names_by_rank = [sorted(names)]
    if stages is not None:
        names_by_rank *= dist.get_world_size(stages)
        dist.all_gather_object(names_by_rank, names_by_rank[0], stages)
    return {name: rank for rank, owned in enumerate(names_by_rank) for name in owned}


def _full(parameter: torch.Tensor, dtype: torch.dtype | None, base: BaseKind | None) -> torch.Tensor:
    """Returns a whole parameter, gathered on the device; parts in host memory are moved there first.

    A matrix that is held as bytes is decoded.
    """
    part = parameter.detach()
    if isinstance(part, DTensor):  # before the cast, whose result would not be page-locked
        part = part.to(part.device_mesh.device_type, non_blocking=True)
    if base is not None and part.dtype == torch.uint8:
        whole = part.full_tensor() if isinstance(part, DTensor) else part
        return decode(whole, base, dtype or torch.float32)
    part = part if dtype is None else part.to(dtype)
    return part.full_tensor() if isinstance(part, DTensor) else part
