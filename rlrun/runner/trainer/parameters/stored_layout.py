"""Converts between the layout of a parameter and that of its HF tensors.

HF tensor --to_parameter--> whole parameter --copy_part--> this rank's part
HF tensor <--to_stored----- whole parameter
"""

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from rlrun.converters.tensors.arranged import by_head, by_section
from rlrun.converters.tensors.base_blocks import BaseKind, encode
from rlrun.models.hf_tensor import HfTensor


def by_parameter(tensors: Iterable[HfTensor]) -> dict[str, list[HfTensor]]:
    """Returns the tensors by the parameter that contains them, experts in order."""
    tensors_of: dict[str, list[HfTensor]] = {}
    for tensor in tensors:
        tensors_of.setdefault(tensor.parameter, []).append(tensor)
    return tensors_of


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
    if not value.numel():
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
