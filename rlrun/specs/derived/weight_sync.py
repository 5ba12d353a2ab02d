"""Decides how weights reach the engines; pure functions, for the rules, the plan and the trainer."""

from typing import Literal

from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.sections.job import Spec

Carrier = Literal["native", "tensor", "broadcast", "disk"]

_MIB = 1 << 20
_BUCKET_MIB = 512
"""Default of `engine.weight_bucket`."""


def carrier_of(spec: Spec) -> Carrier:
    """Returns `native` for rlrun's own engine, else `engine.weight_sync` or its default."""
    if spec.engine.type in ("native", "sleeping", None):  # None: no engines, or not loaded from a file
        return "native"
    if spec.engine.type == "external":
        return spec.engine.weight_sync or "disk"
    if spec.engine.weight_sync is not None or spec.cluster.nodes == 1:
        return spec.engine.weight_sync or "tensor"
    return "disk" if shares_gpus(spec) or sleeps(spec) else "broadcast"


def shares_gpus(spec: Spec) -> bool:
    """Returns whether trainer ranks and engines use the same GPUs."""
    return bool(spec.cluster.gpus_per_node) and spec.cluster.placement == "colocated"


def buckets_on_gpus(spec: Spec) -> bool:
    """Returns whether `tensor` buckets are in GPU memory, where server processes on the same GPUs read them.

    That needs a trainer rank on the GPU of every server process, and every rank must gather all tensors,
    which is not the case with pipeline stages.
    """
    processes = (spec.engine.count or 1) * spec.engine.tensor
    parallel = spec.trainer.parallel
    rank_on_each_gpu = shares_gpus(spec) and parallel.pipeline == 1 and processes <= parallel.world_size
    return rank_on_each_gpu and carrier_of(spec) == "tensor" and spec.engine.weight_bucket is not None


def shares_memory(spec: Spec) -> bool:
    """Returns whether engines must run on trainer rank 0's host, whose shared memory holds the weights."""
    reads_weights = spec.engine.type != "sleeping"
    return reads_weights and carrier_of(spec) in ("native", "tensor") and not buckets_on_gpus(spec)


def bucket_bytes(spec: Spec) -> int | None:
    """Returns the maximum number of bytes that are sent together; None for the whole model."""
    if spec.engine.weight_bucket is None and carrier_of(spec) == "tensor":
        return None
    return (spec.engine.weight_bucket or _BUCKET_MIB) * _MIB
