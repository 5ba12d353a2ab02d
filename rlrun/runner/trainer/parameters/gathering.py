"""Whole HF tensors out of the parts that ranks hold, those of a mesh and the stages of a pipeline, and back.

parts of a parameter ─▶ whole, on its stage ─▶ on the first rank of all ─▶ HF tensors, expert by expert
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

from rlrun.models.tensor_names import HfTensor
from rlrun.runner.trainer.compat.meshes import mesh_device


class Gathering:
    """Which rank of the pipeline has which parameters, and how they come together."""

    def __init__(
        self, tensors: Sequence[HfTensor], names: Iterable[str], stages: dist.ProcessGroup | None
    ) -> None:
        """`names`: of what this rank counts as its own. `stages`: the ranks of the pipeline, if there is one;
        they make this together.
        """
        self._tensors, self._stages = tensors, stages
        self._owners = _owners(names, stages)
        assert self._owners.keys() == {tensor.parameter for tensor in tensors}

    def run(self, held: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Every HF tensor in full on the first rank, in order; all ranks must run through it together, and
        others may see nothing in place of a tensor of another stage. One layer's experts at most at a time.
        """
        holders = by_parameter(self._tensors)
        stacks: dict[str, torch.Tensor] = {}
        for tensor in self._tensors:
            if tensor.expert is None:
                stacks.clear()
                yield tensor.name, turned(tensor, self._whole(held, tensor.parameter, tensor.parameter_shape))
                continue
            if tensor.parameter not in stacks:
                shape = (len(holders[tensor.parameter]), *tensor.shape)
                stacks[tensor.parameter] = self._whole(held, tensor.parameter, shape)
            stack = stacks[tensor.parameter]
            yield tensor.name, stack[tensor.expert] if len(stack) else stack

    def _whole(self, held: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A parameter in full, where this rank or, for the first rank of all, another stage has it."""
        owner = self._owners[name]
        mine = self._stages is None or owner == dist.get_rank(self._stages)
        full = _full(held[name]) if mine else torch.empty(0)
        if self._stages is None or owner == 0 or 0 not in dist.get_process_group_ranks(self._stages):
            return full
        if mine:
            dist.send(full.contiguous(), group=self._stages, group_dst=0)
        elif dist.get_rank(self._stages) == 0:
            full = torch.empty(shape, device=mesh_device(next(iter(held.values()))))
            dist.recv(full, group=self._stages, group_src=owner)
        return full


def by_parameter(tensors: Iterable[HfTensor]) -> dict[str, list[HfTensor]]:
    """Tensors by the parameter that holds them; experts in their order."""
    holders: dict[str, list[HfTensor]] = {}
    for tensor in tensors:
        holders.setdefault(tensor.parameter, []).append(tensor)
    return holders


def turned(tensor: HfTensor, value: torch.Tensor) -> torch.Tensor:
    """Between an HF tensor and its parameter, either way; what another stage has is empty."""
    return value.transpose(-1, -2) if tensor.transposed and len(value) else value


def copy_part(parameter: torch.Tensor, full: torch.Tensor) -> None:
    """Copy what this rank holds of a full tensor."""
    if isinstance(parameter, DTensor):
        part = distribute_tensor(
            full.to(parameter.device, parameter.dtype),
            parameter.device_mesh,
            parameter.placements,
            src_data_rank=None,
        )
        parameter.to_local().copy_(part.to_local())
    else:
        parameter.copy_(full)


def _owners(names: Iterable[str], stages: dist.ProcessGroup | None) -> dict[str, int]:
    """Which rank of the pipeline has each parameter."""
    everyones = [sorted(names)]
    if stages is not None:
        everyones *= dist.get_world_size(stages)
        dist.all_gather_object(everyones, everyones[0], stages)
    return {name: rank for rank, some in enumerate(everyones) for name in some}


def _full(parameter: torch.Tensor) -> torch.Tensor:
    """Gathered on the device, where parts in host memory go first."""
    if not isinstance(parameter, DTensor):
        return parameter.detach()
    return parameter.detach().to(parameter.device_mesh.device_type).full_tensor()
