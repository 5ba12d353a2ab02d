"""Estimates the time of a weight update from the speeds of the links that its bytes pass.

    gather    parts of the weights, from all ranks of a stage to each of them: within a node over its links,
              from other nodes through the network card of each rank
    relay     buckets in GPU memory of a pipeline: from their stage to all others, a slice per network card,
              while slices of earlier buckets are put together within the nodes
    send      the rest of the way: through one rank's network card, host memory, or a disk

Where buckets are used, one is gathered while the one before is sent, so that the slower of both counts. Which
links an update passes is the carrier's (rlrun.runner.weights.carriers); how fast they are is decided here.
"""

import math
from dataclasses import replace
from functools import cache
from statistics import NormalDist

from rlrun.runner.planning.activations import ITEM_BYTES
from rlrun.runner.planning.engine_memory import host_copy_bytes
from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.model_size import adapter_parameters
from rlrun.runner.planning.served_weights import served_weight_bytes
from rlrun.runner.planning.step_time import HOST_LINK, LINK_EFFICIENCY, NETWORK, PlannedJob
from rlrun.runner.weights.carriers.costs import Payload, PlannedUpdate, SyncTime
from rlrun.runner.weights.carriers.table import carrier_for
from rlrun.specs.derived.engine_groups import server_ranks
from rlrun.specs.derived.lora_sync import keeps_host_copy, sends_adapters, why_merged
from rlrun.specs.derived.policy_model import frozen_tower
from rlrun.specs.derived.weight_sync import relay_slices

DISK = 2e9
"""Bytes per second of a disk that all nodes share, while it is written and while it is read."""
WEIGHT_STD = 0.02
"""Standard deviation of the weights: that of the usual initialisation."""
DELTA_BYTES = 2
"""Bytes per changed element: its distance from the one before, and its step."""
_FRACTION_BITS = 7
"""Of bfloat16."""
_QUANTILES = 2000


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
    size, payload = float(sync_bytes(job)[0]), _payload(job)
    if not job.on_gpu and payload != "adapters":
        return SyncTime("through host memory", 0.0, size / HOST_LINK, overlapped=False)
    whole, _ = served_weight_bytes(job.model, job.spec.engine)
    update = PlannedUpdate(payload, size, whole)
    time = carrier_for(job.spec).sync_time(job.spec, update, JobLinks(job))
    if payload != "adapters" or not job.on_gpu or not keeps_host_copy(job.spec, job.model.family):
        return time
    copy = 2 * host_copy_bytes(job) / server_ranks(job.spec) / HOST_LINK  # each GPU has a link
    return replace(
        time, way=f"{time.way}; the frozen model leaves the GPU and returns", send=time.send + copy
    )


def _payload(job: PlannedJob) -> Payload:
    """Returns what updates consist of."""
    if sends_adapters(job.spec, job.model.family):
        return "adapters"
    return "elements" if sends_elements(job) else "model"


class JobLinks:
    """The links of a planned job."""

    host, disk = HOST_LINK, DISK

    def __init__(self, job: PlannedJob) -> None:
        self._job = job

    @property
    def broadcast(self) -> float:
        """Speed from one rank to servers on other devices."""
        return min(self._job.device.link, NETWORK) * LINK_EFFICIENCY

    def gather_in_stages(self, size: float) -> float:
        """Returns the seconds in which all stages gather their tensors at the same time."""
        return self._gather(size / self._job.spec.trainer.parallel.pipeline)

    def gather_on_first_rank(self, size: float) -> float:
        """Returns the seconds in which rank 0 gathers the tensors of all stages; 0 on CPUs."""
        if not self._job.on_gpu:
            return 0.0
        parallel, per_node = self._job.spec.trainer.parallel, self._job.spec.cluster.gpus_per_node
        share = (parallel.pipeline - 1) / parallel.pipeline
        link = self._job.device.link if parallel.world_size <= per_node else NETWORK
        return self._gather(size) + size * share / (link * LINK_EFFICIENCY)

    def relay(self, size: float) -> float:
        """Returns the seconds in which buckets reach the ranks of all other stages: slices, and the whole."""
        parallel, per_node = self._job.spec.trainer.parallel, self._job.spec.cluster.gpus_per_node
        if parallel.pipeline == 1:
            return 0.0
        stage_ranks = parallel.world_size // parallel.pipeline
        link = self._job.device.link if stage_ranks < per_node else NETWORK
        slices = relay_slices(self._job.spec)
        between, within = 1 / (link * slices), (slices - 1) / slices / self._job.device.link
        # both take place at once, except where they share the links of a node
        seconds = between + within if link == self._job.device.link else max(between, within)
        return size * seconds / LINK_EFFICIENCY

    def _gather(self, size: float) -> float:
        """Returns the seconds in which the ranks of a stage gather `size` bytes on each of them."""
        parallel, per_node = self._job.spec.trainer.parallel, self._job.spec.cluster.gpus_per_node
        sharing = parallel.world_size // parallel.pipeline // parallel.replicate
        seconds = size * (sharing - 1) / sharing / self._job.device.link
        if sharing > per_node:
            nodes = sharing / per_node
            seconds += size * (nodes - 1) / nodes / (NETWORK * per_node)
        return seconds / LINK_EFFICIENCY


def sends_elements(job: PlannedJob) -> bool:
    """Returns whether engines get only the elements that changed."""
    return job.spec.engine.weight_delta == "elements" and not sends_adapters(job.spec, job.model.family)


def held_bytes(job: PlannedJob) -> int:
    """Returns the host memory in which the first rank keeps the weights that engines have, for comparison."""
    if not sends_elements(job):
        return 0
    whole, _ = served_weight_bytes(job.model, job.spec.engine)
    return whole * carrier_for(job.spec).held_models
