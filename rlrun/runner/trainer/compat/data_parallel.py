"""torchtitan's FSDP of a decoder: shards, what is gathered of them, and where they lie."""

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import nn

from rlrun.runner.trainer.compat.device import ON_CPU

# isort: split
import torchtitan.distributed.fsdp
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.distributed.full_dtensor import resolve_fsdp_mesh, resolve_sparse_fsdp_mesh

if ON_CPU:
    # page-locked memory needs a GPU
    torchtitan.distributed.fsdp.CPUOffloadPolicy = partial(CPUOffloadPolicy, pin_memory=False)


def shard_data_parallel(
    model: nn.Module, dims: ParallelDims, dtype: torch.dtype, *, on_host: bool = False
) -> None:
    """FSDP (HSDP where there are replicas) around each block, the embedding and the head; gradients summed in
    float32. Experts that are shared out are sharded over the ranks that hold the same ones. `on_host`: shards
    and their gradients lie in host memory.
    """
    mesh, mesh_dims = resolve_fsdp_mesh(dims)
    expert_mesh, expert_mesh_dims = resolve_sparse_fsdp_mesh(dims)
    apply_fsdp_to_decoder(
        model,
        mesh,
        param_dtype=dtype,
        reduce_dtype=torch.float32,
        pp_enabled=dims.pp_enabled,
        cpu_offload=on_host,
        dp_mesh_dims=mesh_dims,
        ep_degree=dims.ep,
        edp_mesh=expert_mesh,
        edp_mesh_dims=expert_mesh_dims,
    )
    if ON_CPU:
        for module in _sharded([model]):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces


def shard_plain_modules(model: nn.Module, dims: ParallelDims, dtype: torch.dtype) -> None:
    """The same for modules that know nothing of meshes, by data parallelism alone."""
    mesh, _ = resolve_fsdp_mesh(dims)
    apply_fsdp_to_decoder(model, mesh, param_dtype=dtype, reduce_dtype=torch.float32, pp_enabled=False)
    if ON_CPU:
        for module in _sharded([model]):
            module.set_force_sum_reduction_for_comms(True)


def reshard(models: Iterable[nn.Module]) -> None:
    """Give up parameters that were gathered for a forward pass without a backward pass.

    FSDP keeps some of them, and would compute with them after the shards have changed.
    """
    for module in _sharded(models):
        module.reshard()


def _sharded(models: Iterable[nn.Module]) -> Iterator[FSDPModule]:
    return (module for model in models for module in model.modules() if isinstance(module, FSDPModule))
