"""Gathers whole HF tensors from their parts on all ranks and pipeline stages, and splits them again.

parts of a parameter ─▶ whole, on every rank of its stage ─▶ HF tensors, expert by expert     run_stage
                                            └─▶ on rank 0 ─▶ HF tensors, expert by expert     run
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

from rlrun.converters.families.merged_weights import merge_factors
from rlrun.converters.tensors.base_blocks import BaseKind, decode, encode
from rlrun.converters.tensors.heads import by_head, by_section
from rlrun.models.adapters import Adapter, AnyAdapter, ExpertAdapter, adapter_tensors
from rlrun.models.tensor_names import HfTensor
from rlrun.runner.trainer.compat.meshes import mesh_device

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
        *,
        adapters: Sequence[AnyAdapter] = (),
        scale: float = 1.0,
        base: BaseKind | None = None,
    ) -> None:
        """`names` are the parameters that this rank owns. `stages` is the process group of the pipeline's
        ranks, if there is a pipeline; all of them create this object together. `adapters`, with their
        `scale`, are merged into the matrices that they belong to. `base`: how parameters that consist of
        bytes hold matrices.
        """
        self._tensors, self._stages = tensors, stages
        self._adapted = {matrix.parameter: adapter for adapter in adapters for matrix in adapter.matrices}
        self._adapter_tensors = adapter_tensors(adapters)
        self._scale, self._base = scale, base
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
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every HF tensor in full on rank 0, in order.

        Gathering is collective, so all ranks must iterate to the end. Other ranks get an empty tensor for a
        tensor of another stage. At most one layer's experts are whole at a time. `dtype`: every rank casts
        its part before it sends it, which gives the same numbers as casting the whole tensor. A matrix with
        an adapter is merged with it in float32, and cast afterwards; without `merged` adapters are left out.
        `present`: is called with each of `held` before it is read.
        """
        whole = partial(self._whole, held, present=present)
        if not merged:
            return _hf_tensors(self._tensors, lambda name, shape: whole(name, shape, dtype))
        return _hf_tensors(self._tensors, self._merged(whole, dtype))

    def run_adapters(
        self, held: Mapping[str, torch.Tensor], dtype: torch.dtype | None = torch.float32
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the adapters' tensors in full on rank 0, by peft's names; collective as `run`."""
        return _hf_tensors(
            self._adapter_tensors, lambda name, shape: self._whole(held, name, shape, dtype, as_it_is)
        )

    def run_stage(
        self, held: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None, present: Present = as_it_is
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the HF tensors of this rank's pipeline stage in full, in order, on every rank of the stage.

        Only the ranks of the stage take part, and all of them must. `dtype`, `present`: see `run`.
        """
        own = [tensor for tensor in self._tensors if self._owners[tensor.parameter] == self._stage]
        return _hf_tensors(
            own, self._merged(lambda name, shape, dtype: _full(present(held[name]), dtype, self._base), dtype)
        )

    def _merged(self, whole: WholeInDtype, dtype: torch.dtype | None) -> Whole:
        """Returns a function that gathers a parameter in `dtype`, merged with its adapter if it has one."""

        def gather(name: str, shape: tuple[int, ...]) -> torch.Tensor:
            adapter = self._adapted.get(name)
            if adapter is None:
                return whole(name, shape, dtype)
            matrix = whole(name, shape, torch.float32)
            down, up = (
                whole(tensor.parameter, tensor.parameter_shape, torch.float32)
                for tensor in (adapter.down, adapter.up)
            )
            # masters may be in host memory while the frozen matrix is not
            down, up = (factor.to(matrix.device, non_blocking=True) for factor in (down, up))
            # an empty tensor belongs to another stage
            merged = _merge(adapter, name, matrix, up, down, self._scale) if len(matrix) else matrix
            return merged if dtype is None else merged.to(dtype)

        return gather

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
            full = torch.empty(shape, dtype=dtype, device=mesh_device(next(iter(held.values()))))
            dist.recv(full, group=self._stages, group_src=owner)
        return full


def by_parameter(tensors: Iterable[HfTensor]) -> dict[str, list[HfTensor]]:
    """Returns the tensors by the parameter that contains them, experts in order."""
    tensors_of: dict[str, list[HfTensor]] = {}
    for tensor in tensors:
        tensors_of.setdefault(tensor.parameter, []).append(tensor)
    return tensors_of


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


def to_parameter(tensor: HfTensor, value: torch.Tensor) -> torch.Tensor:
    """Converts an HF tensor to its parameter's layout: some are stored transposed, or section by section, and
    peft has the factors of all experts in one matrix.
    """
    if tensor.sections:
        return by_head(value, tensor.sections)
    if (factor := tensor.factor) is None:
        return value.transpose(-1, -2) if tensor.transposed else value
    if factor.first:
        return value.unflatten(0, (factor.experts, factor.rank)).transpose(1, 2)
    parts = value.unflatten(1, (factor.rank, factor.experts)).unflatten(0, (factor.halves, -1))
    return parts.permute(3, 1, 0, 2).flatten(1, 2)


def to_stored(tensor: HfTensor, value: torch.Tensor) -> torch.Tensor:
    """Converts a parameter to its HF tensor's layout. An empty tensor, of another stage, stays empty."""
    if not len(value):
        return value
    if tensor.sections:
        return by_section(value, tensor.sections)
    if (factor := tensor.factor) is None:
        return value.transpose(-1, -2) if tensor.transposed else value
    if factor.first:
        return value.transpose(1, 2).flatten(0, 1)
    return value.unflatten(1, (-1, factor.halves)).permute(2, 1, 3, 0).flatten(0, 1).flatten(1, 2)


def copy_part(parameter: torch.Tensor, full: torch.Tensor, base: BaseKind | None = None) -> None:
    """Copies this rank's part of a full tensor into its parameter; into bytes it is encoded as `base`."""
    if base is not None and parameter.dtype == torch.uint8:
        full = encode(full.to(parameter.device), base)
    if isinstance(parameter, DTensor):
        part = distribute_tensor(
            full.to(parameter.device, parameter.dtype),
            parameter.device_mesh,
            parameter.placements,
            src_data_rank=None,  # every rank has read the full tensor, so nothing needs to be sent
        )
        parameter.to_local().copy_(part.to_local())
    else:
        parameter.copy_(full)


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
