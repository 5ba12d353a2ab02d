"""A broadcast of weights to a process on the second GPU (over gloo on the CPU) that is killed in the middle,
and to the process that takes its place.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.gpu.models import DEVICE, ON_GPU
from benchmarks.gpu.results import Case, Goal, Measurement, Skipped
from rlrun.runner.contracts.weight_updates import GroupAddress, Readers, TensorSlot
from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.carriers.broadcast.sender import BroadcastSender
from rlrun.runner.weights.form import Form

SIZE = (512 if ON_GPU else 64) << 20
BUCKET = Bucket(("w",), (TensorSlot("w", "float32", (SIZE // 4,), 0),))
SECONDS = 15.0
"""Deadline of a broadcast: NCCL does not say that a reader has died."""


def killed_reader() -> Measurement:
    """Broadcasts twice to a reader that dies after the first time, then once to its successor."""
    if ON_GPU and torch.cuda.device_count() < 2:
        raise Skipped("it needs two GPUs")
    sender = BroadcastSender(SIZE, "127.0.0.1", DEVICE, SECONDS)
    figures: dict[str, object] = {"gib": SIZE / 2**30}
    try:
        with start_reader(sender.begin(Readers((0,), (0,), 1))) as first:
            figures["first"] = send(sender, 1.0, first)
            first.kill()
            first.wait()
            start = time.perf_counter()
            try:
                send(sender, 2.0, first)
            except RuntimeError as error:
                figures |= {"error": str(error)[:200], "seconds_to_error": time.perf_counter() - start}
        with start_reader(sender.begin(Readers((0,), (1,), 1))) as second:
            figures["successor"] = send(sender, 3.0, second)
            second.kill()
    finally:
        sender.close()
    ended = Goal("seconds_to_error", "<=", 2 * SECONDS + 5)
    figures.setdefault("seconds_to_error", float("nan"))
    return Measurement(figures, (Goal("first", "==", 1.0), ended, Goal("successor", "==", 3.0)))


def send(sender: BroadcastSender, value: float, reader: "subprocess.Popen[str]") -> float:
    """Broadcasts a bucket of this value; returns what the reader has received."""
    weights = (("w", torch.full((SIZE // 4,), value, device=DEVICE)) for _ in range(1))
    sender.send(BUCKET, WeightSet(weights, Form(torch.float32)))
    sender.finish()
    assert reader.stdout is not None
    return float(reader.stdout.readline())


def start_reader(address: GroupAddress) -> "subprocess.Popen[str]":
    """Starts a process that joins as rank 1, on the second GPU; returns when its imports are done.

    On a busy host they take longer than the deadline of a broadcast.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": visible[1]} if ON_GPU else {})
    command = [sys.executable, "-m", "benchmarks.gpu.broadcast", address.name, str(address.port)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert reader.stdout is not None
    reader.stdout.readline()
    return reader


def read(name: str, port: int) -> None:
    """Is the reader: takes buckets as an SGLang server does, and prints the last number of each."""
    print("ready", flush=True)
    timeout = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=timeout)
    store = dist.PrefixStore(f"{DEVICE.type}/", dist.PrefixStore(f"{name}/", dist.PrefixStore(name, store)))
    buffer = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
    if ON_GPU:
        group = dist.ProcessGroupNCCL(store, 1, 2, dist.ProcessGroupNCCL.Options())
    else:
        group = dist.ProcessGroupGloo(store, 1, 2, timeout=timeout)
    while True:
        group.broadcast([buffer], dist.BroadcastOptions()).wait()
        print(float(buffer.view(torch.float32)[-1]), flush=True)


CASES: Mapping[str, Case] = {"killed reader": killed_reader}

if __name__ == "__main__":
    read(sys.argv[1], int(sys.argv[2]))
