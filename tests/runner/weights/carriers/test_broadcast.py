"""Broadcasts to a process that dies, to one that never joins, and to the one that takes its place."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from rlrun.runner.contracts.weight_updates import GroupAddress, Readers, TensorSlot
from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.carriers.broadcast.sender import BroadcastSender
from rlrun.runner.weights.form import Form

SIZE = 64 << 20  # more than a socket takes without a reader
BUCKET = Bucket(("w",), (TensorSlot("w", "float32", (SIZE // 4,), 0),))
ONE, AGAIN = Readers((0,), (0,), 1), Readers((0,), (1,), 1)

READER = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist

name, port, buckets, size = sys.argv[1], *map(int, sys.argv[2:])
store = dist.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=timedelta(seconds=60))
store = dist.PrefixStore("cpu/", dist.PrefixStore(f"{name}/", dist.PrefixStore(name, store)))
group = dist.ProcessGroupGloo(store, 1, 2, timeout=timedelta(seconds=60))
buffer = torch.empty(size, dtype=torch.uint8)
for _ in range(buckets):
    group.broadcast([buffer], dist.BroadcastOptions()).wait()
    print(float(buffer.view(torch.float32)[-1]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sender() -> Iterator[BroadcastSender]:
    sender = BroadcastSender(SIZE, "127.0.0.1", torch.device("cpu"), seconds=60.0)
    yield sender
    sender.close()


def reader(address: GroupAddress, buckets: int) -> "subprocess.Popen[str]":
    """A process that joins as rank 1, takes so many buckets, and then waits."""
    command = [sys.executable, "-c", READER, address.name, str(address.port), str(buckets), str(SIZE)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def weights(*values: float) -> WeightSet:
    tensors = (("w", torch.full((SIZE // 4,), value)) for value in values)
    return WeightSet(tensors, Form(torch.float32))


def test_a_reader_that_dies_ends_the_broadcast_and_its_successor_gets_the_weights(
    sender: BroadcastSender,
) -> None:
    with reader(sender.begin(ONE), buckets=1) as first:
        assert first.stdout is not None
        stream = weights(1.0, 2.0)
        sender.send(BUCKET, stream)
        sender.finish()
        assert float(first.stdout.readline()) == 1.0
        sender.send(BUCKET, stream)
        first.kill()
        with pytest.raises(
            RuntimeError, match=r"the broadcast to 1 engine processes failed: .*[Cc]onnection"
        ):
            sender.finish()
    with reader(sender.begin(AGAIN), buckets=1) as second:
        assert second.stdout is not None
        sender.send(BUCKET, weights(3.0))
        sender.finish()
        assert float(second.stdout.readline()) == 3.0
        second.kill()


@pytest.mark.parametrize("moment", ["while it waits", "before it sends"])
def test_an_abort_ends_the_wait_for_a_reader_that_never_joins(sender: BroadcastSender, moment: str) -> None:
    address = sender.begin(ONE)
    if moment == "before it sends":
        sender.abort("engine 0 was lost")
        sender.send(BUCKET, weights(1.0))
    else:
        sender.send(BUCKET, weights(1.0))
        threading.Timer(0.1, sender.abort, ["engine 0 was lost"]).start()
    with pytest.raises(RuntimeError, match="to 1 engine processes failed: engine 0 was lost"):
        sender.finish()
    assert sender.begin(ONE).name != address.name  # the aborted group is not used again
