"""Buffers that another process opens, in host memory as a server does, and how one on a GPU is described."""

import base64
import inspect
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from rlrun.runner.contracts.weight_updates import Readers, WeightBucket
from rlrun.runner.weights.buckets import Bucket, WeightSet, plan_buckets
from rlrun.runner.weights.carriers.tensor.buffer_sender import SharedBufferSender
from rlrun.runner.weights.carriers.tensor.sharing import SharedBuffer, with_gpu_uuid
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.streams import BucketStream
from tests.waiting import PATIENCE

Ask = Callable[[str], dict[str, list[float]]]
HERE = torch.device("cpu")
SHAPES = {"a": (3, 4), "norm": (5,), "b": (2, 2)}
FORM = Form(torch.float32)


def tensors(version: int) -> dict[str, torch.Tensor]:
    return {name: torch.full(shape, float(version)) for name, shape in SHAPES.items()}


def opened(payload: str) -> dict[str, torch.Tensor]:
    """As a server opens it."""
    held = pickle.loads(base64.b64decode(payload))
    buffer = held["flattened_tensor"]
    return {
        one.name: buffer[one.start_idx : one.end_idx].view(one.dtype).reshape(one.shape).clone()
        for one in held["metadata"]
    }


def read(pipe: Connection) -> None:
    """Another process: answers payloads with what it finds."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    while (payload := pipe.recv()) is not None:
        pipe.send({name: tensor.tolist() for name, tensor in opened(payload).items()})


@pytest.fixture
def reader() -> Iterator[Ask]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=read, args=(theirs,), daemon=True)
    process.start()

    def ask(payload: str) -> dict[str, list[float]]:
        ours.send(payload)
        assert ours.poll(PATIENCE)
        answer: dict[str, list[float]] = ours.recv()
        return answer

    yield ask
    ours.send(None)
    process.join(PATIENCE)
    process.kill()


def file_of(buffer: SharedBuffer) -> Path:
    _, handle, _ = buffer.bytes.untyped_storage()._share_filename_cpu_()
    return Path("/dev/shm") / handle.decode().lstrip("/")


def streams(version: int, senders: list[SharedBufferSender], buckets: list[Bucket]) -> list[BucketStream]:
    """One rank's for each sender."""
    return [
        BucketStream(buckets, WeightSet(iter(tensors(version).items()), FORM), version, sender)
        for sender in senders
    ]


def test_another_process_finds_a_bucket_whose_buffer_is_gone_afterwards(
    reader: Ask,
) -> None:
    [whole] = plan_buckets(SHAPES, FORM, None)
    sender = SharedBufferSender(whole.size, HERE)
    for version in range(3):
        sender.begin(Readers((0, 1), (0, 0), 1))
        [stream] = streams(version, [sender], [whole])
        found = stream.next()
        assert found is not None
        assert len(found.payloads) == 2
        for payload in found.payloads.values():
            assert reader(payload) == {name: one.tolist() for name, one in tensors(version).items()}
    files = {file_of(one) for one in sender._buffers}
    assert len(files) == 2
    assert all(file.exists() for file in files)
    sender.close()
    assert not any(file.exists() for file in files)


def test_each_rank_hands_over_to_the_process_beside_it() -> None:
    buckets = plan_buckets(SHAPES, FORM, 50)
    senders = [SharedBufferSender(48, HERE, {process}) for process in (2, 3, 0, 1, 4, 5)]
    for sender in senders:
        sender.begin(Readers((0, 2), (0, 1), 2))  # of three servers of two processes, the second is lost
    ranks = streams(7, senders, buckets)
    for bucket in buckets:
        parts = [part for rank in ranks if (part := rank.next()) is not None]
        assert [list(part.payloads) for part in parts] == [[], [], [0], [1], [4], [5]]
        whole = WeightBucket.merge(parts)
        assert whole.tensors == bucket.slots
        for payload in whole.payloads.values():
            assert all(torch.equal(one, tensors(7)[name]) for name, one in opened(payload).items())
        assert whole.of_engine(2, 2) == (parts[4].payloads[4], parts[5].payloads[5])
    assert {part.tensors for rank in ranks for part in [rank.next()] if part is not None} == {()}
    for sender in senders:
        sender.close()


def test_engines_load_nothing_if_one_rank_cannot_send_its_part() -> None:
    buckets = plan_buckets(SHAPES, FORM, None)
    senders = [SharedBufferSender(buckets[0].size, HERE, {rank}) for rank in range(2)]
    for sender in senders:
        sender.begin(Readers((0,), (0,), 2))
    first, second = streams(1, senders, buckets)
    second._error = "CUDA out of memory"
    parts = [part for part in (first.next(), second.next()) if part is not None]
    joined = WeightBucket.merge(parts)
    assert (joined.tensors, joined.payloads, joined.error) == ((), {}, "CUDA out of memory")
    for sender in senders:
        sender.close()


def test_a_gpu_is_identified_by_its_uuid() -> None:
    """Where torch's own reader expects its number; every process counts its own GPUs."""
    names = list(inspect.signature(rebuild_cuda_tensor).parameters)
    rebuild, arguments = with_gpu_uuid((rebuild_cuda_tensor, tuple(names)), "uuid of {}".format)
    assert rebuild is rebuild_cuda_tensor
    assert [one for one in arguments if one not in names] == ["uuid of storage_device"]
    assert arguments[names.index("storage_device")] == "uuid of storage_device"
