"""The way weights take from the trainer to the engines of a spec; one object on every rank.

    native                    two segments that engines adopt            SharedWeights
    tensor                    a shared buffer of the whole model         SerializedWriter
    tensor, weight_bucket     two shared buffers, bucket by bucket       BucketStream, SharedOutlet; on GPUs
                              that trainer and servers share, of each rank
    broadcast                 a process group, bucket by bucket          BucketStream, BroadcastOutlet
    disk                      a folder, a file for each bucket           FolderWriter

What is stored whole is written by `write`, and engines read it when they like. What is streamed is only
announced by it; `begin` and `next_bucket` hand it over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from rlrun.converters.tensors.precision import dtype_named
from rlrun.models.architecture import Architecture
from rlrun.models.json_files import read_table
from rlrun.runner.contracts.carriers import GroupAddress, Readers, StreamedWeights, WeightBucket, WeightUpdate
from rlrun.runner.weights.buckets import Bucket, WeightSet, plan_buckets
from rlrun.runner.weights.disk import FolderWriter
from rlrun.runner.weights.form import Form, form_of
from rlrun.runner.weights.serialized import SerializedWriter
from rlrun.runner.weights.server_checksums import Choice, Fingerprints
from rlrun.runner.weights.shared_memory import SharedWeights
from rlrun.runner.weights.streams import BroadcastOutlet, BucketSender, BucketStream, SharedOutlet
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.weight_sync import bucket_bytes, buckets_on_gpus, carrier_of
from rlrun.specs.sections.job import Spec

_GROUP_SECONDS = 120.0
"""For the processes of a group to meet, and for a broadcast."""

Gather = Callable[[], Iterator[tuple[str, torch.Tensor]]]


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The policy on one rank."""

    rank: int
    model: Architecture
    shapes: dict[str, tuple[int, ...]]
    """Of every tensor, Hugging Face names."""
    gather: Gather
    """Every tensor in full on rank 0; all ranks run through it together."""
    device: torch.device
    host: str
    """Address at which other processes reach rank 0."""
    job: str
    """Names what is left in shared memory."""
    folder: Path
    """On a disk that engines see too; the disk carrier's."""
    served: Path
    """Hugging Face folder that engines start from."""


class WeightWriter:
    """One rank's part in giving the policy to the engines."""

    def __init__(self, spec: Spec, source: WeightSource) -> None:
        """Nothing is allocated before the first write. ValueError where engines hold weights in a form that
        is not made here.
        """
        self._spec = spec
        self._source = source
        self._carrier = carrier_of(spec)
        self._readers = spec.engine.tensor
        self._form = Form(dtype_named(spec.engine.dtype))
        self._buckets: list[Bucket] = []
        if self._carrier != "native":
            self._form = form_of(spec.engine.dtype, read_table(source.served / "config.json"))
            self._buckets = plan_buckets(source.shapes, self._form, bucket_bytes(spec))
        self._stored: SharedWeights | SerializedWriter | FolderWriter | None = None
        self._outlet: BucketSender | None = None
        self._stream: BucketStream | None = None
        self._version = -1

    def write(self, version: int) -> WeightUpdate | None:
        """Put the current weights where engines can read them, or announce them; from rank 0.

        Collective. OSError where a disk is full, SegmentError where shared memory is.
        """
        self._version = version
        if self._is_streamed:
            size = sum(bucket.size for bucket in self._buckets)
            update = StreamedWeights(size, version, self._readers, self._carrier == "broadcast")
            return update if self._source.rank == 0 else None
        tensors = self._source.gather()
        if self._source.rank != 0:
            for _ in tensors:
                pass
            return None
        self._stored = self._stored or self._make_stored()
        if isinstance(self._stored, SharedWeights):
            return self._stored.write(tensors, version)
        return self._stored.write(self._set(tensors), version)

    def begin(self, readers: Readers) -> GroupAddress | None:
        """Begin to hand over the weights that were announced; from rank 0, where readers meet, if they do.
        Collective.
        """
        address = None
        if self._source.rank == 0 or buckets_on_gpus(self._spec):
            self._outlet = self._outlet or self._make_outlet()
            address = self._outlet.begin(readers)
        weights = self._set(self._source.gather())
        self._stream = BucketStream(self._buckets, weights, self._version, self._outlet)
        return address

    def next_bucket(self) -> WeightBucket | None:
        """The next bucket, from ranks that hand it over. Collective."""
        assert self._stream is not None, "begun first"
        return self._stream.next()

    def leave(self) -> None:
        """Give up buffers on the device, which others take over; the next update has them again."""
        if buckets_on_gpus(self._spec) and self._outlet is not None:
            self._outlet.close()

    def close(self) -> None:
        """Remove what outlives a process, and leave the group."""
        if self._stored is not None:
            self._stored.close()
        if self._outlet is not None:
            self._outlet.close()
        self._stored = self._outlet = self._stream = None

    @property
    def _is_streamed(self) -> bool:
        whole = self._carrier == "tensor" and self._spec.engine.weight_bucket is None
        return self._carrier in ("tensor", "broadcast") and not whole

    def _set(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> WeightSet:
        extent = self._spec.engine.weight_check
        unknown = self._spec.engine.type == "external" or self._source.device.type != "cpu"
        if self._source.rank != 0 or extent == "none" or unknown:
            return WeightSet(tensors, self._form)
        chosen = Choice(self._source.model, extent, self._version, self._form, self._readers)
        return WeightSet(tensors, self._form, Fingerprints(self._readers, chosen))

    def _make_stored(self) -> SharedWeights | SerializedWriter | FolderWriter:
        spec, source = self._spec, self._source
        if self._carrier == "native":
            return SharedWeights(source.job, source.shapes, spec.engine.dtype)
        if self._carrier == "disk":
            return FolderWriter(source.folder, self._buckets, changed_only=spec.engine.weight_delta)
        [whole] = self._buckets
        return SerializedWriter(whole, layout_of(spec, rollout=True).engines * self._readers)

    def _make_outlet(self) -> BucketSender:
        largest, source = max(bucket.size for bucket in self._buckets), self._source
        if self._carrier == "broadcast":
            return BroadcastOutlet(largest, source.host, source.device, _GROUP_SECONDS)
        if buckets_on_gpus(self._spec):
            return SharedOutlet(largest, source.device, beside=source.rank)
        return SharedOutlet(largest, torch.device("cpu"))
