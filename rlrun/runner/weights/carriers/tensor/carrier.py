"""SGLang servers through torch's handles of shared buffers.

whole model            one buffer in host memory, for servers of this host
with weight_bucket     two buffers in host memory, reused bucket by bucket
… on shared GPUs       two buffers on each rank's GPU, which the server process there reads
changed elements       files in shared memory
adapters               a new buffer in host memory for each version
"""

from typing import TYPE_CHECKING

from rlrun.runner.weights.carriers.carrier import Carrier
from rlrun.runner.weights.carriers.costs import Links, Payload, PlannedUpdate, SyncTime, stored_time
from rlrun.specs.derived.engine_groups import server_ranks
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.weight_sync import bucket_bytes, buckets_on_gpus, relay_slices
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    from rlrun.runner.weights.rank_weights import RankAdapters, RankWeights
    from rlrun.runner.weights.writer import Writer

_WAYS: dict[Payload, str] = {
    "model": "the whole model in host memory",
    "elements": "changed elements in shared memory",
    "adapters": "adapters through host memory",
}


class SharedBuffers(Carrier):
    """Buffers that trainer and servers share."""

    held_models = 3  # the version that engines have; full versions and deltas, each at most the model

    def writer(self, spec: Spec, source: "RankWeights") -> "Writer":
        """Stores the whole model or what changed, or streams buckets."""
        from rlrun.runner.host.segment_files import FOLDER, new_segment_name
        from rlrun.runner.weights.carriers.tensor.buffer_sender import SharedBufferSender
        from rlrun.runner.weights.carriers.tensor.serialized import SerializedWriter
        from rlrun.runner.weights.carriers.tensor.updates import SharedBuckets
        from rlrun.runner.weights.deltas.delta_folder import delta_writer
        from rlrun.runner.weights.page_locking import HOST
        from rlrun.runner.weights.streams import StreamWriter
        from rlrun.runner.weights.writer import SentModel, StoredWriter

        sent = SentModel(spec, source)
        if spec.engine.weight_delta == "elements":
            return delta_writer(sent, FOLDER / new_segment_name(source.job))
        if bucket_bytes(spec) is None:
            [whole] = sent.buckets()
            readers = layout_of(spec, rollout=True).engines * server_ranks(spec)
            return StoredWriter(sent, lambda: SerializedWriter(whole, readers, source.device))

        def sender_on_gpu(largest: int) -> SharedBufferSender:
            processes = () if source.engine_process is None else (source.engine_process,)
            return SharedBufferSender(source.stages.padded(largest), source.device, processes)

        def sender_on_host(largest: int) -> SharedBufferSender:
            return SharedBufferSender(largest, HOST, source=source.device)

        leads = source.rank == 0
        if buckets_on_gpus(spec):
            return StreamWriter(
                sent=sent,
                announce=SharedBuckets,
                buckets=sent.buckets(by_stage=True),
                gather=source.gather_stage,
                make_sender=sender_on_gpu,
                leads=leads,
                on_device=True,
            )
        return StreamWriter(
            sent=sent,
            announce=SharedBuckets,
            buckets=sent.buckets(),
            gather=source.gather,
            make_sender=sender_on_host if leads else None,
            leads=leads,
        )

    def adapter_writer(self, spec: Spec, source: "RankAdapters") -> "Writer":
        """Stores the factors of each version in a new buffer."""
        from rlrun.runner.weights.carriers.tensor.serialized import BufferAdapterWriter

        return BufferAdapterWriter(spec, source)

    def sync_time(self, spec: Spec, update: PlannedUpdate, links: Links) -> SyncTime:
        """Returns the time of buckets on GPUs or in host memory, or of a copy as a whole."""
        buckets, gathered = bucket_bytes(spec), links.gather_on_first_rank(update.size)
        if update.payload == "model" and buckets_on_gpus(spec):
            way = f"buckets of {_mebibytes(buckets)} in GPU memory (CUDA IPC)"
            gather = links.gather_in_stages(update.size)
            return SyncTime(way, gather, links.relay(update.size), overlapped=False)
        if update.payload == "model" and buckets is not None:
            way, copy = f"buckets of {_mebibytes(buckets)} in host memory", update.size / links.host
            return SyncTime(way, gathered + copy, copy, overlapped=True)
        return stored_time(update, links, _WAYS, links.host)

    def device_bytes(self, spec: Spec) -> tuple[int, str]:
        """Returns the buckets on GPUs, with those that a pipeline relays."""
        size, stages = bucket_bytes(spec), spec.trainer.parallel.pipeline
        if size is None or not buckets_on_gpus(spec):
            return 0, ""
        if stages == 1:
            return 2 * size, "2 × engine.weight_bucket"
        slices = relay_slices(spec)
        received = (stages - 1) * size // slices if slices > 1 else 0
        return 3 * size + received, "3 × engine.weight_bucket, and slices of the other stages' buckets"


def _mebibytes(size: int | None) -> str:
    assert size is not None, "this way has buckets"
    return f"{size >> 20} MiB"
