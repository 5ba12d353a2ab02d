"""How a trainer rank hands its weights to engines on a pretended GPU, by each carrier that copies them.

Three things are replaced, because they need memory with content, a driver or a peer: the file or CUDA IPC
handle of a shared buffer (its payload is the name of the buffer's device), the registration of memory with
CUDA, and the process group of a broadcast, which notes what NCCL would get. Whether a server can open a
handle, and whether NCCL delivers, no trace can tell.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from rlrun.runner.contracts.weight_updates import Readers
from rlrun.runner.trainer.roles import learner
from rlrun.runner.trainer.roles.rank import TrainerRank
from rlrun.runner.weights import page_locking, writer
from rlrun.runner.weights.carriers.broadcast import sender
from rlrun.runner.weights.carriers.native import shared_memory
from rlrun.runner.weights.carriers.native.adapter_writer import SegmentAdapterWriter
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from rlrun.runner.weights.carriers.tensor import sharing
from rlrun.runner.weights.server_adapters import ServerAdapterWriter
from rlrun.runner.weights.writer import StoredWriter
from tests.cuda.lone_rank import lone_rank
from tests.cuda.recording import RECORDING
from tests.cuda.trainer_trace import setup_of
from tests.resolved_specs import resolved

BUCKET = 20_000
"""Bytes of a bucket: the model is sent in several of them."""
PROCESSES = 2
"""Processes of the engine."""


def trace(
    end_phase: Callable[[str], None],
    *,
    spec: dict[str, Any],
    folder: str,
    rank: int,
    weights_folder: str,
    parked: bool,
) -> dict[str, Any]:
    """Hands weights over twice, each time a phase; returns what the last update consisted of.

    `weights_folder` is that of the disk carrier. `parked`: the trainer's state is in host memory meanwhile.
    """
    job = resolved(spec)
    learner.load_checkpoint = lambda *args, **settings: 1  # the files are read without a GPU
    replace_peers()
    with lone_rank(job.trainer.parallel, rank):
        setup = replace(setup_of(job, folder, rank), engine_process=0, weights_folder=weights_folder)
        trainer = TrainerRank(setup)
        if isinstance(trainer._writer, ServerAdapterWriter | SegmentAdapterWriter):
            hand_over(trainer)  # with the first update engines also get the frozen model
        if parked:
            trainer.offload()
        end_phase("start")
        hand_over(trainer)
        end_phase("first update")
        result = hand_over(trainer)
        end_phase("second update")
        if job.engine.type == "native":
            trainer._writer.close()  # removes the segments, the only memory here that is real
    return result


def replace_peers() -> None:
    """Replaces the handles of shared buffers, the process group of a broadcast and the size of buckets."""
    planned = writer.bucket_bytes
    writer.bucket_bytes = lambda spec: None if planned(spec) is None else BUCKET
    torch.from_file = lambda path, size, dtype: torch.empty(size, dtype=dtype)
    torch.Tensor.share_memory_ = lambda self: self
    page_locking.register, page_locking.unregister = RECORDING.pinned.add, lambda memory: None
    shared_memory._Segment.__init__ = segment_without_content
    sharing._payload = lambda buffer, bucket: str(buffer.device)
    sender._join = lambda address, store, device, timeout: Group()
    sender.threading = SimpleNamespace(Thread=CalledAtOnce)


real_segment = shared_memory._Segment.__init__


def segment_without_content(self: Any, name: str, descriptor: int, size: int) -> None:
    """Maps the segment's file, but lays tensors out in memory that is as pretended as they are."""
    real_segment(self, name, descriptor, size)
    self.memory = torch.empty(size, dtype=torch.uint8)


class CalledAtOnce:
    """A thread whose function runs in the caller's.

    Fake tensors are not safe for threads: while an operation runs, every thread sees all of them on `meta`.
    """

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **settings: Any) -> None:
        self.start = partial(target, *args)


class Group:
    """A process group that sends to nobody."""

    def broadcast(self, tensors: list[torch.Tensor], options: object) -> SimpleNamespace:
        RECORDING.note_collective("broadcast", tensors)
        return SimpleNamespace(wait=lambda: None)


def hand_over(trainer: TrainerRank) -> dict[str, Any]:
    """Writes an update, and sends its buckets where they are streamed, as the driver asks for them."""
    update = trainer.write_weights(1)
    writer = trainer._writer
    if isinstance(writer, ServerAdapterWriter | SegmentAdapterWriter):
        return {"buckets": 1, "devices": []}
    if isinstance(writer, StoredWriter):
        payloads = getattr(update, "payloads", ())
        in_segment = isinstance(update, WeightManifest)
        return {"buckets": 1 if in_segment else len(writer._sent.buckets()), "devices": sorted(set(payloads))}
    trainer.begin_weights(Readers((0,), (0,), PROCESSES))
    devices: set[str] = set()
    buckets = 0
    while (bucket := trainer.next_bucket()) is not None:
        assert bucket.error is None, bucket.error
        if not bucket.tensors:
            break
        devices |= set(bucket.payloads.values())
        buckets += 1
    return {"buckets": buckets, "devices": sorted(devices)}
