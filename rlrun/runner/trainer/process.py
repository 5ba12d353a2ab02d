"""The process of one trainer rank: threads, device, determinism, process group, mesh."""

import os
import random
from datetime import timedelta
from functools import cache
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from rlrun.models.cache import private_folder
from rlrun.runner.contracts.carriers import TrainerSetup
from rlrun.runner.host.network import use_interface_of
from rlrun.runner.trainer.compat.device import ON_CPU
from rlrun.runner.trainer.compat.meshes import ParallelDims, forget_meshes, leave_meshes, set_spmd_backend
from rlrun.runner.weights.tcp_store import store_server
from rlrun.specs.sections.trainer import ParallelSpec

RENDEZVOUS_SECONDS = 300
"""How long ranks wait for each other to join; `exchange_timeouts` has the later time-outs."""


def start_process(setup: TrainerSetup, deterministic: bool) -> torch.device:
    """Sets this process up and returns its device; joins the process group where there are several ranks."""
    torch.set_num_threads(setup.threads)
    # torch.compile loads what it finds in its cache, which another user could fill in /tmp beforehand
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private_folder("inductor")))
    # torchtitan keeps its mesh in thread-local storage, which autograd's own threads would not see
    torch.autograd.set_multithreading_enabled(False)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    check_device(setup.device, sees_gpu=not ON_CPU)
    device = torch.device("cpu") if ON_CPU else torch.device("cuda", 0)
    if not ON_CPU:
        torch.cuda.set_device(device)
    use_interface_of(setup.host or setup.master_addr)
    if setup.world_size > 1 and not dist.is_initialized():
        _join(setup, device)
    return device


def check_device(planned: Literal["cpu", "cuda"], *, sees_gpu: bool) -> None:
    """Raises ValueError unless torch computes on the device that the spec names.

    torchtitan chooses its device when it is imported: a GPU if torch sees one.
    """
    if planned == "cuda" and not sees_gpu:
        ids = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ValueError(
            f"a GPU is reserved for this rank (CUDA_VISIBLE_DEVICES={ids}), but torch {torch.__version__} "
            "sees none: check nvidia-smi, and that torch is a build for CUDA on every node, or set "
            "cluster.gpus_per_node = 0 to train on CPUs"
        )
    if planned == "cpu" and sees_gpu:
        raise ValueError(
            "this rank is to compute on the CPU (cluster.gpus_per_node = 0), but torch sees a GPU and would "
            "use it: set CUDA_VISIBLE_DEVICES to an empty string before the process starts"
        )


def build_mesh(parallel: ParallelSpec, world_size: int) -> ParallelDims | None:
    """Returns the device mesh; None for one rank."""
    assert parallel.world_size == world_size, "the plan and the ranks disagree"
    if world_size == 1:
        return None
    forget_meshes()
    return _mesh(
        parallel.replicate,
        parallel.fsdp,
        parallel.context,
        parallel.tensor,
        parallel.pipeline,
        parallel.expert,
    )


@cache
def _mesh(  # noqa: PLR0917
    replicate: int, fsdp: int, context: int, tensor: int, pipeline: int, expert: int
) -> ParallelDims:
    """Returns the mesh of a layout, cached: torch compares meshes by identity, spmd_types by value."""
    set_spmd_backend("spmd_types")
    dims = ParallelDims(
        dp_replicate=replicate,
        dp_shard=fsdp,
        cp=context,
        tp=tensor,
        pp=pipeline,
        ep=expert,
        world_size=replicate * fsdp * context * tensor * pipeline,
    )
    dims.build_mesh()
    return dims


def seed_generators(seed: int) -> None:
    """Seeds the global generators of torch (on every device), numpy and Python.

    A plugin's loss may draw from them. They are seeded before each optimizer step, so a resumed run draws
    the same numbers, and checkpoints need no random states.
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def stop_process() -> None:
    """Leaves the process group."""
    if dist.is_initialized():
        _mesh.cache_clear()
        leave_meshes()
        dist.destroy_process_group()


def _join(setup: TrainerSetup, device: torch.device) -> None:
    host, port, size = setup.master_addr, setup.master_port, setup.world_size
    timeout = timedelta(seconds=RENDEZVOUS_SECONDS)
    try:
        if setup.rank == 0:
            store = store_server(host, port, size, timeout, wait_for_workers=True)
        else:
            store = dist.TCPStore(host, port, size, is_master=False, timeout=timeout)
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            store=store,
            rank=setup.rank,
            world_size=size,
            timeout=timeout,
            device_id=None if device.type == "cpu" else device,
        )
    except dist.DistError as error:
        raise RuntimeError(
            f"trainer rank {setup.rank} of {setup.world_size} waited {RENDEZVOUS_SECONDS} s for the others "
            f"at {setup.master_addr}:{setup.master_port}: {error}"
        ) from error
