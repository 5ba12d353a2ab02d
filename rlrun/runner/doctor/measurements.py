"""Measures GPUs: speed, access between them, memory shared by two processes, NCCL.

    python -m rlrun.runner.doctor.measurements NAME [ARGUMENT…]     prints one JSON object as its last line

Each measurement runs in processes of its own, so that a driver or a collective that hangs can be ended, and
the caller does not import torch. Without a GPU they measure the CPU, over gloo instead of NCCL; `rlrun
doctor` does not use that, but the tests and benchmarks/gpu do.
"""

import base64
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import reductions

from rlrun.runner.contracts.weight_updates import TensorSlot
from rlrun.runner.host.network import use_interface_of
from rlrun.runner.weights.buckets import Bucket
from rlrun.runner.weights.carriers.tensor.sharing import SharedBuffer
from rlrun.runner.weights.tensor_slots import tensors_in
from rlrun.specs.safe_python import own_python

ON_GPU = torch.cuda.is_available()
PRODUCT = 8192 if ON_GPU else 256
"""Rows and columns of the matrices that are multiplied: large enough to reach a GPU's full speed."""
COPIED = 2**30 if ON_GPU else 2**22
"""Bytes of a copy."""
ROUNDS = 10
_STORAGE_DEVICE = 6
"""Position of the GPU in the arguments of torch's `rebuild_cuda_tensor`."""


def speed(index: str = "0") -> dict[str, float]:
    """Returns the speed of one GPU: `flops` of a bfloat16 product, and bytes per second of copies.

    A copy within the device counts the bytes read and those written.
    """
    device = torch.device("cuda", int(index)) if ON_GPU else torch.device("cpu")
    left, right = (torch.randn(PRODUCT, PRODUCT, device=device).bfloat16() for _ in range(2))
    source, target = (torch.zeros(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
    host = torch.zeros(COPIED, dtype=torch.uint8, pin_memory=ON_GPU)
    seconds = partial(_seconds, device)
    return {
        "flops": 2 * PRODUCT**3 / seconds(lambda: left @ right),
        "within": 2 * COPIED / seconds(lambda: target.copy_(source)),
        "to_device": COPIED / seconds(lambda: target.copy_(host, non_blocking=True)),
        "to_host": COPIED / seconds(lambda: host.copy_(target, non_blocking=True)),
    }


def peers() -> dict[str, list[list[int]]]:
    """Returns the pairs of GPUs where the first cannot access the second's memory."""
    gpus = range(torch.cuda.device_count())
    return {
        "without_access": [
            [first, second]
            for first in gpus
            for second in gpus
            if first != second and not torch.cuda.can_device_access_peer(first, second)
        ]
    }


def shared_buffer() -> dict[str, list[list[float]]]:
    """Returns what another process read from a buffer that this one wrote twice, as it was `written`
    and `read`.

    It is the way of colocated weights to an SGLang server: a CUDA IPC handle on a GPU.
    """
    device = torch.device("cuda", torch.cuda.device_count() - 1) if ON_GPU else torch.device("cpu")
    slots = TensorSlot("a", "float32", (1000,), 0), TensorSlot("b", "bfloat16", (300, 7), 4000)
    bucket = Bucket(("a", "b"), slots)
    buffer = SharedBuffer(bucket.size, device)
    written = [[turn + 1.5, turn + 2.0] for turn in range(2)]
    read = []
    for values in written:
        _fill(buffer, bucket, values)
        [payload] = buffer.payloads(bucket, 1)
        read.append(_start("read_buffer", input=payload)["values"])
    buffer.close()
    return {"written": written, "read": read}


def read_buffer() -> dict[str, list[float]]:
    """Opens the buffer whose payload is on stdin as an SGLang server does; returns each tensor's value.

    ValueError where a tensor does not have the same value everywhere.
    """
    torch.multiprocessing.set_sharing_strategy("file_system")
    reductions.rebuild_cuda_tensor = partial(_rebuild_by_uuid, reductions.rebuild_cuda_tensor)
    held = pickle.loads(base64.b64decode(sys.stdin.read()))
    values = []
    for slot in held["metadata"]:
        tensor = held["flattened_tensor"][slot.start_idx : slot.end_idx].view(slot.dtype)
        if not bool((tensor == tensor[0]).all()):
            raise ValueError(f"tensor {slot.name} was read with values that nobody wrote")
        values.append(float(tensor[0]))
    return {"values": values}


def all_reduce(rank: str, size: str, store: str) -> dict[str, float]:
    """Joins `size` ranks, one for each GPU, that meet in the file `store`; returns their bus bandwidth.

    That is NCCL's measure: the bytes per second that each link carries, whatever the number of ranks.
    """
    ranks = int(size)
    use_interface_of("127.0.0.1")
    device = torch.device("cuda", int(rank)) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if ON_GPU else "gloo",
        store=dist.FileStore(store, ranks),
        rank=int(rank),
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    tensor = torch.ones(COPIED // 8, device=device)
    dist.all_reduce(tensor)
    if not bool((tensor == ranks).all()):
        raise ValueError("the sum over the GPUs is wrong")
    seconds = _seconds(device, lambda: dist.all_reduce(tensor))
    dist.destroy_process_group()
    return {"bus": 2 * (ranks - 1) / ranks * tensor.nbytes / seconds}


def _fill(buffer: SharedBuffer, bucket: Bucket, values: list[float]) -> None:
    """Writes one value into each tensor. No view of the buffer remains, so that `close` can free it."""
    for view, value in zip(tensors_in(buffer.bytes, bucket.slots).values(), values, strict=True):
        view.fill_(value)


def _rebuild_by_uuid(rebuild: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    """Rebuilds a CUDA tensor whose GPU is named by its UUID, as sglang.srt.utils.patch_torch does."""
    uuid = arguments[_STORAGE_DEVICE]
    gpus = range(torch.cuda.device_count())
    index = next(gpu for gpu in gpus if str(torch.cuda.get_device_properties(gpu).uuid) == uuid)
    return rebuild(*arguments[:_STORAGE_DEVICE], index, *arguments[_STORAGE_DEVICE + 1 :])


def _seconds(device: torch.device, function: Callable[[], object]) -> float:
    """Returns the seconds of one call, after two that warm up."""
    synchronize = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    function()
    function()
    synchronize()
    start = time.perf_counter()
    for _ in range(ROUNDS):
        function()
    synchronize()
    return (time.perf_counter() - start) / ROUNDS


def _start(name: str, input: str) -> dict[str, Any]:
    command = own_python("-m", "rlrun.runner.doctor.measurements", name)
    process = subprocess.run(command, input=input, stdout=subprocess.PIPE, text=True, timeout=90, check=True)
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answer


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (speed, peers, shared_buffer, read_buffer, all_reduce)
}

if __name__ == "__main__":
    print(json.dumps(MEASUREMENTS[sys.argv[1]](*sys.argv[2:])))
