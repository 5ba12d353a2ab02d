"""Shards decoders with torchtitan's FSDP."""

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

from rlrun.specs.sections.trainer import ParallelSpec

if ON_CPU:
    # Page-locked memory needs a GPU; torchtitan offers no way to turn it off.
    torchtitan.distributed.fsdp.CPUOffloadPolicy = partial(CPUOffloadPolicy, pin_memory=False)


def shard_data_parallel(
    model: nn.Module,
    dims: ParallelDims,
    dtype: torch.dtype,
    parallel: ParallelSpec,
    *,
    on_host: bool = False,
) -> None:
    """Applies FSDP (HSDP with replicas) to each block, the embedding and the head; sums gradients in float32.

    With expert parallelism, experts are sharded over the ranks that hold the same experts. `on_host`: shards
    and their gradients are in host memory.
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
        reshard_after_forward_policy=parallel.reshard_after_forward,
        dp_mesh_dims=mesh_dims,
        ep_degree=dims.ep,
        edp_mesh=expert_mesh,
        edp_mesh_dims=expert_mesh_dims,
        enable_symm_mem=parallel.symmetric_memory,
    )
    if ON_CPU:
        for module in _sharded([model]):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces


def shard_plain_modules(
    model: nn.Module, dims: ParallelDims, dtype: torch.dtype, reshard_after_forward: str = "default"
) -> None:
    """Applies FSDP to modules without other kinds of parallelism, such as transformers'."""
    mesh, _ = resolve_fsdp_mesh(dims)
    apply_fsdp_to_decoder(
        model,
        mesh,
        param_dtype=dtype,
        reduce_dtype=torch.float32,
        pp_enabled=False,
        reshard_after_forward_policy=reshard_after_forward,
    )
    if ON_CPU:
        for module in _sharded([model]):
            module.set_force_sum_reduction_for_comms(True)


def reshard(models: Iterable[nn.Module]) -> None:
    """Frees parameters that were gathered for a forward pass without a backward pass.

    FSDP keeps some of them gathered, and would still compute with them after the shards have changed.
    """
    for module in _sharded(models):
        module.reshard()


def _sharded(models: Iterable[nn.Module]) -> Iterator[FSDPModule]:
    return (module for model in models for module in model.modules() if isinstance(module, FSDPModule))
