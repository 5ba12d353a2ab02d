"""Which way weights take to the engines; pure, for the rules, the plan and the trainer."""

from typing import Literal

from rlrun.specs.job import Spec

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
    return spec.engine.weight_sync or ("tensor" if spec.cluster.nodes == 1 else "broadcast")


def shares_memory(spec: Spec) -> bool:
    """Whether engines must be on trainer rank 0's host."""
    return carrier_of(spec) in ("native", "tensor")


def bucket_bytes(spec: Spec) -> int | None:
    """Most bytes that are on their way at a time; None: the whole model."""
    if spec.engine.weight_bucket is None and carrier_of(spec) == "tensor":
        return None
    return (spec.engine.weight_bucket or _BUCKET) * _MIB
