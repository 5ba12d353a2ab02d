"""Shards decoders with torchtitan's FSDP."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from rlrun.runner.trainer.compat.device import ON_CPU

# isort: split
import torchtitan.distributed.fsdp
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
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
    tower = getattr(model, "visual", None)
    if tower is not None:
        _shard_tower(tower, dims, dtype, on_host=on_host)
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
    if on_host:
        for module in _sharded([model]):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                _add_up_on_device(group)


def _shard_tower(tower: Any, dims: ParallelDims, dtype: torch.dtype, *, on_host: bool) -> None:
    """Applies FSDP to the blocks of transformers' vision tower, and to the rest of it together.

    Tensor-parallel ranks have the whole tower, which transformers computes without their layout.
    """
    mesh, _ = resolve_fsdp_mesh(dims)
    names = mesh.mesh_dim_names
    assert names is not None
    options: dict[str, Any] = {
        "mesh": mesh[tuple(name for name in names if name != "tp")],
        "mp_policy": MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False),
    }
    if on_host:
        options["offload_policy"] = torchtitan.distributed.fsdp.CPUOffloadPolicy()
    for block in tower.blocks:
        fully_shard(block, **options)
    fully_shard(tower, **options)


def _add_up_on_device(group: Any) -> None:
    """Has a group of parameters in host memory add up gradients before they leave the device.

    FSDP adds them in host memory, for which the host waits at every gradient, and after every backward pass
    it waits for each gradient again. Here it waits once, before it reads them (`wait_for_gradients`).
    """

    def add_earlier(reduced: torch.Tensor) -> None:
        if reduced.is_cuda:
            # it was allocated for the stream that reduces, and is now copied to host memory in this one
            reduced.record_stream(torch.cuda.current_stream(reduced.device))
        offset = 0
        for parameter in group.fsdp_params:
            shard = parameter.sharded_param
            if not shard.requires_grad:
                continue
            if shard.grad is not None:
                local_gradient = reduced.as_strided(
                    parameter.sharded_size, parameter.contiguous_sharded_stride, offset
                )
                local_gradient += shard.grad.to_local().to(reduced.device, non_blocking=True)
                shard.grad = None
            offset += parameter.padded_sharded_param_size.numel()
        assert offset == reduced.numel(), "FSDP reduces the gradients of all trained parameters together"

    def finalize() -> None:
        for parameter in group.fsdp_params:
            parameter.grad_offload_event = None
        type(group).finalize_backward(group)

    group._all_reduce_hook = add_earlier
    group.finalize_backward = finalize


def reshard(models: Iterable[nn.Module]) -> None:
    """Frees parameters that were gathered for a forward pass without a backward pass.

    FSDP keeps some of them gathered, and would still compute with them after the shards have changed.
    """
    for module in _sharded(models):
        module.reshard()


def _sharded(models: Iterable[nn.Module]) -> Iterator[FSDPModule]:
    return (module for model in models for module in model.modules() if isinstance(module, FSDPModule))
