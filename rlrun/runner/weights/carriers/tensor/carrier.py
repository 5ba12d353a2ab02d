"""SGLang servers through torch's handles of shared buffers.

whole model            one buffer in host memory, for servers of this host
with weight_bucket     two buffers in host memory, reused bucket by bucket
… on shared GPUs       two buffers on each rank's GPU, which the server process there reads
changed elements       files in shared memory
adapters               a new buffer in host memory for each version
"""

from typing import TYPE_CHECKING

from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.weight_sync import bucket_bytes, buckets_on_gpus
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    from rlrun.runner.weights.source import AdapterSource, WeightSource
    from rlrun.runner.weights.writer import Writer


class SharedBuffers:
    """Buffers that trainer and servers share."""

    def writer(self, spec: Spec, source: "WeightSource") -> "Writer":
        """Stores the whole model or what changed, or streams buckets."""
        from rlrun.runner.host.segment_files import FOLDER, new_segment_name
        from rlrun.runner.weights.carriers.tensor.buffer_sender import SharedBufferSender
        from rlrun.runner.weights.carriers.tensor.serialized import SerializedWriter
        from rlrun.runner.weights.carriers.tensor.updates import SharedBuckets
        from rlrun.runner.weights.deltas.delta_folder import delta_writer
        from rlrun.runner.weights.page_locking import HOST
        from rlrun.runner.weights.writer import SentModel, StoredWriter, Streaming, StreamWriter

        sent = SentModel(spec, source)
        if spec.engine.weight_delta == "elements":
            return delta_writer(sent, FOLDER / new_segment_name(source.job))
        if bucket_bytes(spec) is None:
            [whole] = sent.buckets()
            readers = layout_of(spec, rollout=True).engines * spec.engine.tensor
            return StoredWriter(sent, lambda: SerializedWriter(whole, readers, source.device))

        def sender_on_gpu(largest: int) -> SharedBufferSender:
            processes = () if source.engine_process is None else (source.engine_process,)
            return SharedBufferSender(source.stages.padded(largest), source.device, processes)

        def sender_on_host(largest: int) -> SharedBufferSender:
            return SharedBufferSender(largest, HOST, source=source.device)

        leads = source.rank == 0
        if buckets_on_gpus(spec):
            streaming = Streaming(
                announce=SharedBuckets,
                buckets=sent.buckets(by_stage=True),
                gather=source.gather_stage,
                make_sender=sender_on_gpu,
                leads=leads,
                on_device=True,
            )
        else:
            streaming = Streaming(
                announce=SharedBuckets,
                buckets=sent.buckets(),
                gather=source.gather,
                make_sender=sender_on_host if leads else None,
                leads=leads,
            )
        return StreamWriter(sent, streaming)

    def adapter_writer(self, spec: Spec, source: "AdapterSource") -> "Writer":
        """Stores the factors of each version in a new buffer."""
        from rlrun.runner.weights.carriers.tensor.serialized import BufferAdapterWriter

        return BufferAdapterWriter(spec, source)
