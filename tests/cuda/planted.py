"""Programs that do one thing that blocks the host, or that NCCL or CUDA refuses: the recorder must see it."""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from rlrun.runner.trainer.compat.meshes import FakeStore
from tests.cuda.recording import RECORDING, Recorder

GPU = torch.device("cuda", 0)


def trace(end_phase: Callable[[str], None], name: str) -> None:
    """Runs one of PROGRAMS on tensors of two elements, as rank 0 of two."""
    dist.init_process_group("cuda:fake", store=FakeStore(), rank=0, world_size=2)
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder(RECORDING):
        PROGRAMS[name](torch.ones(2, device=GPU), torch.ones(2))
        end_phase(name)


def to_pageable(device: torch.Tensor, host: torch.Tensor) -> None:
    """Copies into memory that is not page-locked, which blocks whatever is asked for."""
    host.copy_(device, non_blocking=True)


def to_pinned(device: torch.Tensor, host: torch.Tensor) -> None:
    """Copies into page-locked memory, and reads it behind an event."""
    torch.empty(2, pin_memory=True).copy_(device, non_blocking=True)


def many_at_once(device: torch.Tensor, host: torch.Tensor) -> None:
    """Copies two tensors with one operation."""
    torch._foreach_copy_([device, device], [host, host])


def nothing(device: torch.Tensor, host: torch.Tensor) -> None:
    """Runs only what does not wait: kernels, an empty copy, a known shape, a collective that NCCL takes."""
    total = (device * 2 + 1.0).sum()
    torch.empty(0).to(GPU)
    total.repeat_interleave(torch.ones(1, dtype=torch.int64, device=GPU), output_size=1)
    device[torch.zeros(1, dtype=torch.int64, device=GPU)] += 1
    dist.all_reduce(device)
    torch.cuda.current_stream().wait_event(torch.cuda.Event())


@torch.inference_mode()
def inference(device: torch.Tensor, host: torch.Tensor) -> None:
    """Copies there and back without autograd, which changes what a dispatch mode sees."""
    host.to(GPU)
    device.to("cpu")


Program = Callable[[torch.Tensor, torch.Tensor], object]
PROGRAMS: dict[str, Program] = {
    "nothing": nothing,
    "item": lambda device, host: device[0].item(),
    "float": lambda device, host: float(device.sum()),
    "bool": lambda device, host: bool(device.any()),
    "equal": lambda device, host: torch.equal(device, device),
    "tolist": lambda device, host: device.tolist(),
    "synchronize": lambda device, host: torch.cuda.synchronize(),
    "event": lambda device, host: torch.cuda.Event().synchronize(),
    "stream": lambda device, host: torch.cuda.current_stream().synchronize(),
    "unknown repeats": lambda device, host: device.long().repeat_interleave(device.long()),
    "object": lambda device, host: dist.all_gather_object([None, None], "name"),
    "to GPU": lambda device, host: host.to(GPU),
    "array to GPU": lambda device, host: torch.from_numpy(np.ones(2)).to(GPU),
    "list to GPU": lambda device, host: torch.tensor([1.0], device=GPU),
    "pageable to GPU": lambda device, host: host.to(GPU, non_blocking=True),
    "pinned, but waits": lambda device, host: host.pin_memory().to(GPU),
    "pinned to GPU": lambda device, host: host.pin_memory()[:1].to(GPU, non_blocking=True),
    "many to GPU": many_at_once,
    "cpu": lambda device, host: device.cpu(),
    "to host": lambda device, host: device.to("cpu", non_blocking=True),
    "to pageable": to_pageable,
    "to pinned": to_pinned,
    "inference": inference,
    "host collective": lambda device, host: dist.all_reduce(host),
    "host collective of many": lambda device, host: dist.all_gather([device, device], host),
    "int16 collective": lambda device, host: dist.all_reduce(device.to(torch.int16)),
    "two devices": lambda device, host: device + host,
    "mask": lambda device, host: device[device > 0],
    "nonzero": lambda device, host: device.nonzero(),
    "numpy": lambda device, host: device.numpy(),
}
