"""Decides how weights reach the engines; pure functions, for the rules, the plan and the trainer.

trainer and native engines            (no choice)
on one node                           native: two segments of shared memory
on several nodes                      disk

SGLang servers read elements that changed from a folder; with `tensor` it is in shared memory.

trainer and SGLang servers            default
on separate devices of one node       tensor: one buffer for the whole model in host memory
on separate devices of several nodes  broadcast, in one process group for each pipeline stage
on the same GPUs                      tensor: buckets in the memory of each GPU that a server uses
… some of which no rank uses          tensor through host memory on one node, disk on several
"""

import math

from rlrun.specs.derived.engine_groups import policy_groups
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.server_size import gpus_of
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.weight_carriers import (
    BROADCAST,
    CHOSEN,
    DISK,
    NATIVE,
    TENSOR,
    WeightCarrier,
    takes,
)

_MIB = 1 << 20
_BUCKET_MIB = 512
"""Default of `engine.weight_bucket`."""


def carrier_of(spec: Spec) -> WeightCarrier:
    """Returns how new weights travel: by `engine.weight_sync` where the engines take it, or by its default.

    A native engine adopts weights in shared memory. That does not reach other nodes, so it reads files there.
    """
    engine, given = spec.engine.type, spec.engine.given("weight_sync")
    if takes(engine, given):
        return CHOSEN[given]
    if engine in ("native", None):  # None: no engines, or not loaded from a file
        return DISK if engine == "native" and spec.cluster.nodes > 1 else NATIVE
    if engine == "external":
        return DISK
    if spec.cluster.nodes == 1 or has_rank_on_each_gpu(spec):
        return TENSOR
    return DISK if shares_gpus(spec) or sleeps(spec) else BROADCAST


def shares_gpus(spec: Spec) -> bool:
    """Returns whether trainer ranks and engines use the same GPUs."""
    return bool(spec.cluster.gpus_per_node) and spec.cluster.placement == "colocated"


def has_rank_on_each_gpu(spec: Spec) -> bool:
    """Returns whether a trainer rank is on the GPU of every process of every server.

    Ranks and servers both take the job's GPUs in order.
    """
    groups = policy_groups(spec)
    processes = sum((group.section.count or 1) * gpus_of(group.section) for group in groups)
    return shares_gpus(spec) and processes <= spec.trainer.parallel.world_size


def buckets_on_gpus(spec: Spec) -> bool:
    """Returns whether buckets are in GPU memory, where the server process on the same GPU reads them."""
    return carrier_of(spec) is TENSOR and has_rank_on_each_gpu(spec)


def shares_memory(spec: Spec) -> bool:
    """Returns whether engines must run on trainer rank 0's host, whose shared memory holds the weights."""
    return carrier_of(spec).on_trainers_host and not buckets_on_gpus(spec)


def bucket_mib(spec: Spec) -> int | None:
    """Returns the MiB of weights that are sent together; None for the whole model."""
    in_files = spec.engine.weight_delta == "elements"
    is_whole = carrier_of(spec) is TENSOR and not buckets_on_gpus(spec) and not in_files
    given: int | None = spec.engine.given("weight_bucket")
    return given or (None if is_whole else _BUCKET_MIB)


def bucket_bytes(spec: Spec) -> int | None:
    """Returns the maximum number of bytes that are sent together; None for the whole model."""
    size = bucket_mib(spec)
    return None if size is None else size * _MIB


def relay_slices(spec: Spec) -> int:
    """Returns into how many slices a bucket in GPU memory is cut to reach the other pipeline stages.

    Each is sent by another rank of a node. Ranks are numbered with the pipeline outermost, and take the GPUs
    of a node in order.
    """
    parallel = spec.trainer.parallel
    return math.gcd(parallel.world_size // parallel.pipeline, *spec.cluster.gpus_of_nodes)
