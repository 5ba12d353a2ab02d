"""Which way weights take to the engines; pure, for the rules, the plan and the trainer."""

from typing import Literal

from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.sections.job import Spec

Carrier = Literal["native", "tensor", "broadcast", "disk"]

_MIB = 1 << 20
_BUCKET = 512
"""MiB."""


def carrier_of(spec: Spec) -> Carrier:
    """`native` where rlrun's own engine adopts them; a server's by `engine.weight_sync`."""
    if spec.engine.type in ("native", "sleeping"):
        return "native"
    if spec.engine.type == "external":
        return spec.engine.weight_sync or "disk"
    if spec.engine.weight_sync is not None or spec.cluster.nodes == 1:
        return spec.engine.weight_sync or "tensor"
    return "disk" if shares_gpus(spec) or sleeps(spec) else "broadcast"


def shares_gpus(spec: Spec) -> bool:
    """Whether trainer ranks and engines compute on the same GPUs."""
    return bool(spec.cluster.gpus_per_node) and spec.cluster.placement == "colocated"


def buckets_on_gpus(spec: Spec) -> bool:
    """Whether buckets of `tensor` lie on GPUs, each read by the process of a server that computes there too:
    every such process shares its GPU with a trainer rank, and every rank gathers all tensors, which stages of
    a pipeline do not.
    """
    processes = (spec.engine.count or 1) * spec.engine.tensor
    parallel = spec.trainer.parallel
    beside = shares_gpus(spec) and parallel.pipeline == 1 and processes <= parallel.world_size
    return beside and carrier_of(spec) == "tensor" and spec.engine.weight_bucket is not None


def shares_memory(spec: Spec) -> bool:
    """Whether engines must be on trainer rank 0's host."""
    return carrier_of(spec) in ("native", "tensor") and not buckets_on_gpus(spec)


def bucket_bytes(spec: Spec) -> int | None:
    """Most bytes that are on their way at a time; None: the whole model."""
    if spec.engine.weight_bucket is None and carrier_of(spec) == "tensor":
        return None
    return (spec.engine.weight_bucket or _BUCKET) * _MIB
