"""Meshes of ranks: torchtitan's, what torch remembers of them, and a rank's part of what lies on one."""

import torch

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
from torch.distributed.tensor import DTensor
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
    "forget_meshes",
    "get_spmd_context",
    "leave_meshes",
    "local_part",
    "mesh_device",
    "set_spmd_backend",
    "with_local_part",
]


def forget_meshes() -> None:
    """Make torch build everything anew for the next model.

    It remembers the layouts of results, and for another mesh over the same ranks would give the one it knows
    already, which FSDP refuses: policy, critic and teacher have a mesh each.
    """
    _clear_sharding_prop_cache()
    _clear_fast_path_sharding_prop_cache()


def leave_meshes() -> None:
    """Forget the meshes that torchtitan took note of: their process groups are gone."""
    set_spmd_meshes(dense_mesh=None, sparse_mesh=None)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, without a gradient; the same memory."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def mesh_device(tensor: torch.Tensor) -> torch.device:
    """The device that a tensor's ranks exchange it on; its own where nobody shares it."""
    return torch.device(tensor.device_mesh.device_type) if isinstance(tensor, DTensor) else tensor.device


def with_local_part(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor laid out over the ranks like another, with this part of it here, on whatever device the part
    lies: the public way would move it to the mesh's.
    """
    if not isinstance(like, DTensor):
        return part
    laid_out: torch.Tensor = DTensor(part, like._spec, requires_grad=False)
    return laid_out
