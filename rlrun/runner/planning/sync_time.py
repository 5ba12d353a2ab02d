"""Estimates the time of a weight update from the speeds of the links that its bytes pass.

    gather    parts of the weights, from all ranks of a stage to each of them: within a node over its links,
              from other nodes through the network card of each rank
    relay     buckets in GPU memory of a pipeline: from their stage to all others, a slice per network card,
              while slices of earlier buckets are put together within the nodes
    send      the rest of the way: through one rank's network card, host memory, or a disk

Where buckets are used, one is gathered while the one before is sent, so that the slower of both counts.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

from rlrun.runner.planning.activations import ITEM_BYTES
from rlrun.runner.planning.engine_memory import host_copy_bytes
from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.model_size import adapter_parameters
from rlrun.runner.planning.served_weights import served_weight_bytes
from rlrun.runner.planning.step_time import HOST_LINK, LINK_EFFICIENCY, NETWORK, PlannedJob
from rlrun.specs.derived.lora_sync import keeps_host_copy, sends_adapters, why_merged
from rlrun.specs.derived.policy_model import frozen_tower
from rlrun.specs.derived.weight_sync import bucket_bytes, buckets_on_gpus, carrier_of, relay_slices

DISK = 2e9
"""Bytes per second of a disk that all nodes share, while it is written and while it is read."""


COMPARISON = 4e9
"""Bytes of weights that the first rank compares with the version before, per second: 1e9 per thread."""
WEIGHT_STD = 0.02
"""Standard deviation of the weights: that of the usual initialisation."""
DELTA_BYTES = 2
"""Bytes per changed element: its distance from the one before, and its step."""
_FRACTION_BITS = 7
"""Of bfloat16."""
_QUANTILES = 2000


@dataclass(frozen=True, slots=True)
class SyncTime:
    """The estimated seconds of one weight update."""

    way: str
    """How the weights travel, in a few words."""
    gather: float
    send: float
    """Seconds after gathering: from the trainer's first rank, or from its GPUs, to the servers."""
    overlapped: bool
    """Whether a bucket is gathered while another is sent."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole update."""
        return max(self.gather, self.send) if self.overlapped else self.gather + self.send


def sync_bytes(job: PlannedJob) -> tuple[int, str]:
    """Returns the bytes of a weight update, and what they are, in a few words.

    Engines keep the vision tower of their own model unless it is trained.
    """
    spec, lora = job.spec, job.spec.trainer.lora
    whole, _ = served_weight_bytes(job.model, spec.engine)
    if sends_elements(job):
        share = min(1.0, changed_share(spec.trainer.lr) * DELTA_BYTES / ITEM_BYTES[spec.engine.dtype])
        return int(share * whole), f"elements that change at this lr; the model has {format_bytes(whole)}"
    if frozen_tower(spec.trainer, job.model):
        text, _ = served_weight_bytes(replace(job.model, vision=None), spec.engine)
        return text, f"the text model; the frozen vision tower has {format_bytes(whole - text)}"
    if lora is None:
        return whole, "the whole model"
    if not sends_adapters(spec, job.model.family):
        return whole, f"the merged model: {why_merged(spec, job.model.family) or 'engine.lora_sync'}"
    dtype = spec.engine.dtype if spec.engine.type == "sglang" else "float32"
    size = adapter_parameters(job.model, lora.shape) * ITEM_BYTES[dtype]
    return size, f"adapters alone; the whole model has {format_bytes(whole)}"


@cache  # a sweep asks for each of thousands of layouts
def changed_share(lr: float, std: float = WEIGHT_STD) -> float:
    """Returns the estimated share of weights in bfloat16 that one optimizer step changes.

    Adam moves each weight by about the learning rate. That changes a weight with the probability
    rate / spacing, where numbers of a weight's size are 2^(exponent - 7) apart. Small weights are close
    together, so most of those change.
    """
    weights = NormalDist(0.0, std)
    magnitudes = (abs(weights.inv_cdf((index + 0.5) / _QUANTILES)) for index in range(_QUANTILES))
    chances = (min(1.0, lr / _spacing(magnitude)) for magnitude in magnitudes)
    return sum(chances) / _QUANTILES


def _spacing(magnitude: float) -> float:
    """Returns the difference between neighbouring numbers of this magnitude in bfloat16."""
    return 2.0 ** (math.frexp(magnitude)[1] - 1 - _FRACTION_BITS)


def sync_time(job: PlannedJob) -> SyncTime:
    """Returns the estimated time of a weight update; engines' own copying is not counted."""
    size = float(sync_bytes(job)[0])
    if sends_adapters(job.spec, job.model.family):
        return _adapter_sync_time(job, size)
    if not job.on_gpu:
        return SyncTime("through host memory", 0.0, size / HOST_LINK, overlapped=False)
    carrier, buckets = carrier_of(job.spec), bucket_bytes(job.spec)
    stages = job.spec.trainer.parallel.pipeline
    gather_at_once = _gather_seconds(job, size / stages)  # all stages at the same time
    if buckets_on_gpus(job.spec):
        way = f"buckets of {_mebibytes(buckets)} in GPU memory (CUDA IPC)"
        return SyncTime(way, gather_at_once, _relay_seconds(job, size), overlapped=False)
    if carrier == "broadcast":
        way = "broadcast" + (f", a process group for each of {stages} stages" if stages > 1 else "")
        send = size / (min(job.device.link, NETWORK) * LINK_EFFICIENCY)
        return SyncTime(way, gather_at_once, send, overlapped=True)
    if sends_elements(job):
        return _delta_sync_time(job, size)
    gather = _gather_seconds(job, size) + _to_first_rank_seconds(job, size)
    if carrier == "disk":
        return SyncTime("files on a shared disk", gather, 2 * size / DISK, overlapped=False)
    if carrier == "tensor" and buckets is not None:
        way = f"buckets of {_mebibytes(buckets)} in host memory"
        return SyncTime(way, gather + size / HOST_LINK, size / HOST_LINK, overlapped=True)
    return SyncTime("the whole model in host memory", gather, 2 * size / HOST_LINK, overlapped=False)


def _adapter_sync_time(job: PlannedJob, size: float) -> SyncTime:
    """Returns the time of an update of adapters alone; servers that sleep also copy their frozen model."""
    gather = _gather_seconds(job, size) + _to_first_rank_seconds(job, size) if job.on_gpu else 0.0
    way, send = "adapters through host memory", 2 * size / HOST_LINK
    if carrier_of(job.spec) == "disk":
        way, send = "adapters in files on a shared disk", 2 * size / DISK
    if job.on_gpu and keeps_host_copy(job.spec, job.model.family):
        way += "; the frozen model leaves the GPU and returns"
        send += 2 * host_copy_bytes(job) / job.spec.engine.tensor / HOST_LINK  # each GPU has a link
    return SyncTime(way, gather, send, overlapped=False)


def _delta_sync_time(job: PlannedJob, size: float) -> SyncTime:
    """Returns the time of an update of the elements that changed: all weights are gathered and compared."""
    whole, _ = served_weight_bytes(job.model, job.spec.engine)
    gather = _gather_seconds(job, whole) + _to_first_rank_seconds(job, whole) + whole / COMPARISON
    if carrier_of(job.spec) == "disk":
        return SyncTime("changed elements on a shared disk", gather, 2 * size / DISK, overlapped=False)
    return SyncTime("changed elements in shared memory", gather, 2 * size / HOST_LINK, overlapped=False)


def sends_elements(job: PlannedJob) -> bool:
    """Returns whether engines get only the elements that changed."""
    return job.spec.engine.weight_delta == "elements" and not sends_adapters(job.spec, job.model.family)


def held_bytes(job: PlannedJob) -> int:
    """Returns the host memory in which the first rank keeps the weights that engines have, for comparison."""
    if not sends_elements(job):
        return 0
    whole, _ = served_weight_bytes(job.model, job.spec.engine)
    in_memory = carrier_of(job.spec) == "tensor"  # full versions and deltas, each at most the model
    return whole * (3 if in_memory else 1)


def _gather_seconds(job: PlannedJob, size: float) -> float:
    """Returns the seconds in which the ranks of a stage gather `size` bytes on each of them."""
    parallel, per_node = job.spec.trainer.parallel, job.spec.cluster.gpus_per_node
    sharing = parallel.world_size // parallel.pipeline // parallel.replicate
    seconds = size * (sharing - 1) / sharing / job.device.link
    if sharing > per_node:
        nodes = sharing / per_node
        seconds += size * (nodes - 1) / nodes / (NETWORK * per_node)
    return seconds / LINK_EFFICIENCY


def _relay_seconds(job: PlannedJob, size: float) -> float:
    """Returns the seconds in which buckets reach the ranks of all other stages: slices, and the whole."""
    parallel, per_node = job.spec.trainer.parallel, job.spec.cluster.gpus_per_node
    if parallel.pipeline == 1:
        return 0.0
    stage_ranks = parallel.world_size // parallel.pipeline
    link = job.device.link if stage_ranks < per_node else NETWORK
    slices = relay_slices(job.spec)
    between, within = 1 / (link * slices), (slices - 1) / slices / job.device.link
    # both take place at once, except where they share the links of a node
    seconds = between + within if link == job.device.link else max(between, within)
    return size * seconds / LINK_EFFICIENCY


def _to_first_rank_seconds(job: PlannedJob, size: float) -> float:
    """Returns the seconds in which rank 0 receives the tensors of the other stages."""
    parallel, per_node = job.spec.trainer.parallel, job.spec.cluster.gpus_per_node
    share = (parallel.pipeline - 1) / parallel.pipeline
    link = job.device.link if parallel.world_size <= per_node else NETWORK
    return size * share / (link * LINK_EFFICIENCY)


def _mebibytes(size: int | None) -> str:
    assert size is not None, "this way has buckets"
    return f"{size >> 20} MiB"
