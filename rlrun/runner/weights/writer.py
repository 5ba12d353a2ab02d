"""Hands the policy's weights from the trainer to the engines. One WeightWriter runs on every trainer rank.

    sharded parameters ──gather──▶ one full tensor at a time ──WeightSet──▶ buckets ──carrier──▶ engines

A carrier is one of these classes, chosen from the spec:

    carrier                       medium                                  class
    native                        two segments that engines adopt         SharedWeights
    tensor                        one buffer for the whole model          SerializedWriter
    tensor with weight_bucket     two buffers, reused bucket by bucket    BucketStream, SharedBufferSender
      … on shared GPUs              the same on each rank's GPU
    broadcast                     a process group per pipeline stage      BucketStream, BroadcastSender
    disk                          a folder, one file per bucket           FolderWriter
    disk or tensor, elements      a folder with what changed              DeltaFolderWriter

Native engines get `native` on one node, and `disk` on several.

There are two ways through this file. A *stored* set (native, the whole-model buffer, disk) is complete when
`write` returns, and engines read it at any later time. A *streamed* set never exists as a whole: `write` only
announces it, then the driver (rlrun.runner.engines.pool.delivery) calls `begin` once and `next_bucket` until
a bucket without tensors comes.

The last two of the streamed carriers (buffers on GPUs, broadcast) gather each tensor only within its pipeline
stage, so that a bucket has tensors of one stage. All others gather every tensor on rank 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from rlrun.converters.tensors.precision import parse_dtype
from rlrun.models.architecture import Architecture
from rlrun.models.json_files import read_json_object
from rlrun.runner.contracts.weight_updates import (
    Readers,
    StreamedWeights,
    StreamMember,
    WeightBucket,
    WeightUpdate,
)
from rlrun.runner.host.segment_files import FOLDER, new_segment_name
from rlrun.runner.weights.broadcast import BroadcastSender
from rlrun.runner.weights.buckets import (
    Bucket,
    RelayedWeightSet,
    WeightSet,
    plan_buckets,
    plan_stage_buckets,
)
from rlrun.runner.weights.deltas.delta_folder import DeltaFolderWriter
from rlrun.runner.weights.disk import FolderWriter
from rlrun.runner.weights.form import Form, engine_form
from rlrun.runner.weights.page_locking import HOST
from rlrun.runner.weights.serialized import SerializedWriter
from rlrun.runner.weights.server_checksums import ChecksumRecorder, ComparedTensors
from rlrun.runner.weights.shared_memory import SharedWeights
from rlrun.runner.weights.stages import Stages
from rlrun.runner.weights.streams import BucketSender, BucketStream, SharedBufferSender
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.weight_sync import bucket_bytes, buckets_on_gpus, carrier_of
from rlrun.specs.sections.job import Spec

_GROUP_SECONDS = 120.0
"""Deadline for all processes to join the broadcast group, and for each broadcast."""

StoredWriter = SharedWeights | SerializedWriter | FolderWriter | DeltaFolderWriter
Tensors = Iterator[tuple[str, torch.Tensor]]
Gather = Callable[[torch.dtype | None], Tensors]
"""Yields HF tensors in full, by name. Each rank casts its part to the dtype before it is sent; None: not."""


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The policy on one rank, and the places that its weights are written to."""

    rank: int
    model: Architecture
    shapes: dict[str, tuple[int, ...]]
    """Shape of every tensor, by Hugging Face name."""
    gather: Gather
    """Yields every tensor in full on rank 0. It is collective: all ranks must run through it together."""
    gather_stage: Gather
    """Yields the tensors of this rank's pipeline stage in full on all ranks of the stage, which must run
    through it together."""
    stages: Stages
    device: torch.device
    host: str
    """Address at which other processes reach this rank."""
    job: str
    """Name of the job; part of the names of its shared-memory segments."""
    folder: Path
    """Folder of the disk carrier, on a disk that engines see too."""
    model_folder: Path
    """Hugging Face folder that engines start from."""
    engine_process: int | None = None
    """Number of the engine process on this rank's GPU, counted over the processes of all engines; None where
    there is none."""


class WeightWriter:
    """One rank's part in handing the policy's weights to the engines."""

    def __init__(self, spec: Spec, source: WeightSource) -> None:
        """Plans the buckets; buffers are allocated at the first write.

        Raises ValueError if engines hold weights in a form that rlrun cannot produce.
        """
        self._spec = spec
        self._source = source
        self._carrier = carrier_of(spec)
        self._readers = spec.engine.tensor
        self._form = Form(parse_dtype(spec.engine.dtype))
        self._buckets: list[Bucket] = []
        if self._carrier != "native":
            config = read_json_object(source.model_folder / "config.json")
            self._form = engine_form(spec.engine.dtype, config, source.shapes)
            self._buckets = self._plan_buckets()
        self._stored: StoredWriter | None = None
        self._sender: BucketSender | None = None
        self._stream: BucketStream | None = None
        self._version = -1

    def write(self, version: int) -> WeightUpdate | None:
        """Stores the current weights where engines can read them, or announces a stream of them.

        Collective. Returns the update on rank 0 and None on other ranks. Raises OSError if a disk is full,
        SegmentError if shared memory is full.
        """
        self._version = version
        if self._is_streamed:
            size = sum(bucket.size for bucket in self._buckets)
            update = StreamedWeights(size, version, self._readers, self._carrier == "broadcast")
            return update if self._source.rank == 0 else None
        tensors = self._source.gather(self._sent_dtype)
        if self._source.rank != 0:
            for _ in tensors:  # takes part in gathering every tensor; rank 0 alone stores them
                pass
            return None
        self._stored = self._stored or self._make_stored()
        if isinstance(self._stored, SharedWeights):
            return self._stored.write(tensors, version)
        return self._stored.write(self._weight_set(tensors), version)

    def begin(self, readers: Readers) -> StreamMember:
        """Begins to stream the announced weights to these readers; collective."""
        stages, group = self._source.stages, None
        if self._sends:
            self._sender = self._sender or self._make_sender()
            group = self._sender.begin(readers)
        gather = self._source.gather_stage if self._gathers_by_stage else self._source.gather
        weights = self._weight_set(gather(self._sent_dtype))
        self._stream = BucketStream(self._own_buckets, weights, self._version, self._sender)
        return StreamMember(stages.own if self._carrier == "broadcast" else 0, group)

    def next_bucket(self) -> WeightBucket | None:
        """Sends the next bucket and returns its description; None on ranks that only gather.

        All ranks of a stream make this call together.
        """
        assert self._stream is not None, "`begin` comes first"
        return self._stream.next()

    def abort(self, reason: str) -> None:
        """Stops waiting for engines that cannot take the stream; called from another thread."""
        if self._sender is not None:
            self._sender.abort(reason)

    def release_buffers(self) -> None:
        """Frees buffers on the device for the engines that share it; the next update allocates them again."""
        if buckets_on_gpus(self._spec) and self._sender is not None:
            self._sender.close()
            self._stream = None  # with a pipeline it has buffers, too

    def close(self) -> None:
        """Removes files and segments that would outlive this process, and leaves the broadcast group."""
        if self._stored is not None:
            self._stored.close()
        if self._sender is not None:
            self._sender.close()
        self._stored = self._sender = self._stream = None

    @property
    def _is_streamed(self) -> bool:
        is_whole_model = self._carrier == "tensor" and bucket_bytes(self._spec) is None
        in_files = self._spec.engine.weight_delta == "elements"
        return self._carrier in ("tensor", "broadcast") and not is_whole_model and not in_files

    @property
    def _gathers_by_stage(self) -> bool:
        return self._carrier == "broadcast" or buckets_on_gpus(self._spec)

    @property
    def _leads(self) -> bool:
        """Whether this rank is the first of its stream."""
        broadcasts = self._carrier == "broadcast"
        return self._source.stages.is_first_rank if broadcasts else self._source.rank == 0

    @property
    def _sends(self) -> bool:
        return self._leads or buckets_on_gpus(self._spec)

    @property
    def _own_buckets(self) -> list[Bucket]:
        """The buckets of this rank's stream."""
        own = self._source.stages.own
        broadcasts = self._carrier == "broadcast"
        return [bucket for bucket in self._buckets if bucket.stage == own or not broadcasts]

    @property
    def _sent_dtype(self) -> torch.dtype | None:
        """The dtype that tensors are gathered in: the engines', unless they are quantised from float32.

        A trainer that multiplies in the engines' FP8 rounds what FSDP has cast to bfloat16, so that engines
        get the same numbers only if theirs are cast too.
        """
        precision = self._spec.trainer.low_precision
        rounds_alike = precision is not None and precision.blockwise
        return self._form.dtype if self._form.kept is None or rounds_alike else None

    def _plan_buckets(self) -> list[Bucket]:
        source, limit = self._source, bucket_bytes(self._spec)
        if self._gathers_by_stage:
            return plan_stage_buckets(source.shapes, source.stages.stage_of, self._form, limit)
        return plan_buckets(source.shapes, self._form, limit)

    def _weight_set(self, tensors: Tensors) -> WeightSet:
        """Returns the tensors of one update, with checksums where servers are to be compared with them."""
        recorder, source = self._make_recorder(), self._source
        if buckets_on_gpus(self._spec) and source.stages.group is not None:
            stages, device = source.stages, source.device
            return RelayedWeightSet(
                tensors, self._form, recorder, buckets=self._buckets, stages=stages, device=device
            )
        return WeightSet(tensors, self._form, recorder)

    def _make_recorder(self) -> ChecksumRecorder | None:
        """Returns what records checksums, on the first rank of a stream.

        Only SGLang servers that this job started are compared: the layout of an external server is unknown,
        and native engines compute no checksums.
        """
        extent = self._spec.engine.weight_check
        if not self._leads or extent == "none" or self._spec.engine.type != "sglang":
            return None
        model, wide = self._source.model, rounds_as_target(self._spec)
        compared = ComparedTensors(model, extent, self._version, self._form, self._readers, wide=wide)
        return ChecksumRecorder(self._readers, compared, self._source.device)

    def _make_stored(self) -> StoredWriter:
        spec, source = self._spec, self._source
        if spec.engine.weight_delta == "elements":
            folder = source.folder if self._carrier == "disk" else FOLDER / new_segment_name(source.job)
            processes = None if spec.engine.type == "native" else self._readers
            return DeltaFolderWriter(folder, self._buckets, processes=processes, source=source.device)
        if self._carrier == "native":
            return SharedWeights(source.job, source.shapes, spec.engine.dtype, device=source.device)
        if self._carrier == "disk":
            changed_only = spec.engine.weight_delta == "files"
            return FolderWriter(source.folder, self._buckets, changed_only=changed_only, source=source.device)
        [whole] = self._buckets
        readers = layout_of(spec, rollout=True).engines * self._readers
        return SerializedWriter(whole, readers, source.device)

    def _make_sender(self) -> BucketSender:
        largest, source = max(bucket.size for bucket in self._own_buckets), self._source
        if self._carrier == "broadcast":
            return BroadcastSender(largest, source.host, source.device, _GROUP_SECONDS)
        if buckets_on_gpus(self._spec):
            processes = () if source.engine_process is None else (source.engine_process,)
            return SharedBufferSender(source.stages.padded(largest), source.device, processes)
        return SharedBufferSender(largest, HOST, source=source.device)
