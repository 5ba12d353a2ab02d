"""Meshes of ranks: torchtitan's meshes, torch's caches of them, and a rank's part of a distributed tensor."""

import torch
import torch.distributed as dist

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_fast_path_sharding_prop_cache, _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.spmd_types import set_spmd_meshes
from torchtitan.distributed.utils import get_spmd_context, set_spmd_backend

__all__ = [
    "FakeStore",
    "ParallelDims",
    "ShardingPropagator",
    "all_process_groups",
    "forget_meshes",
    "get_spmd_context",
    "laid_out_like",
    "leave_meshes",
    "local_part",
    "mesh_device",
    "set_spmd_backend",
    "with_local_part",
]


def forget_meshes() -> None:
    """Clears torch's caches of layouts, before the next model is built.

    Policy, critic and teacher each have a mesh. torch caches the layouts of results, and would return one on
    an equal mesh over the same ranks, which FSDP refuses.
    """
    _clear_sharding_prop_cache()
    _clear_fast_path_sharding_prop_cache()


def all_process_groups() -> list[dist.ProcessGroup]:
    """Returns every process group that this rank belongs to; none without other ranks."""
    if not dist.is_initialized():
        return []
    member = dist.GroupMember.NON_GROUP_MEMBER
    return [group for group in dist.distributed_c10d._world.pg_map if group is not member]


def leave_meshes() -> None:
    """Makes torchtitan forget its meshes, whose process groups no longer exist."""
    set_spmd_meshes(dense_mesh=None, sparse_mesh=None)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a tensor, detached, in the same memory."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def mesh_device(tensor: torch.Tensor) -> torch.device:
    """Returns the device of a tensor's mesh; the tensor's own device if it is not distributed."""
    return torch.device(tensor.device_mesh.device_type) if isinstance(tensor, DTensor) else tensor.device


def with_local_part(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Returns a tensor laid out like `like`, with `part` as this rank's part.

    The part stays on its device; torch's public functions would move it to the mesh's.
    """
    if not isinstance(like, DTensor):
        return part
    laid_out: torch.Tensor = DTensor(part, like._spec, requires_grad=False)
    return laid_out


def laid_out_like(like: torch.Tensor, part: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor of the given global shape and the dtype of `part`, distributed as `like`, with `part`
    as this rank's part, on the device that it is on.
    """
    if not isinstance(like, DTensor):
        return part
    stride = torch.empty(shape, device="meta").stride()
    spec = DTensorSpec(
        like.device_mesh, like.placements, tensor_meta=TensorMeta(torch.Size(shape), stride, part.dtype)
    )
    laid_out: torch.Tensor = DTensor(part, spec, requires_grad=False)
    return laid_out
