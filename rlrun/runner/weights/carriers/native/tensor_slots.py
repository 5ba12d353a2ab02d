"""Lays out all tensors of a checkpoint in one flat buffer.

Matrices that an engine multiplies by together (q, k, v of a layer; its gate and up) follow each other without
a gap, so that the engine can use each run of them as one fused matrix without copying.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from rlrun.converters.tensors.precision import keeps_precision
from rlrun.runner.contracts.weight_updates import TensorSlot

ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector register."""

ITEM_SIZE = {"float32": 4, "bfloat16": 2, "float16": 2}

_FUSED_RUNS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3")
_MEMBER = re.compile(r"\b(q_proj|k_proj|v_proj|gate_proj|up_proj|w1|w3)\b")


def layout(shapes: Mapping[str, Sequence[int]], dtype: str, start: int = 0) -> tuple[TensorSlot, ...]:
    """Returns the slots of tensors of `dtype`, one after the other from byte `start`; a tensor that is never
    cast is in float32.

    Runs begin at multiples of `ALIGNMENT`; there is no padding between the members of a run (q, k, v; gate,
    up; likewise their biases). The order is that of `shapes`; a run is placed where its first member is.
    """
    if dtype not in ITEM_SIZE:
        raise ValueError(f"dtype {dtype!r} of shared weights: it must be one of {', '.join(ITEM_SIZE)}")
    slots: list[TensorSlot] = []
    offset = start
    for run in _runs(shapes):
        offset = -(-offset // ALIGNMENT) * ALIGNMENT
        for name in run:
            own = "float32" if keeps_precision(name) else dtype
            slots.append(TensorSlot(name, own, tuple(shapes[name]), offset))  # type: ignore[arg-type]
            offset += num_bytes(slots[-1])
    return tuple(slots)


def num_bytes(slot: TensorSlot) -> int:
    """Returns the size of one tensor in bytes."""
    return prod(slot.shape) * ITEM_SIZE[slot.dtype]


def end_of(slots: Iterable[TensorSlot]) -> int:
    """Returns the offset of the first byte after the last tensor."""
    return max((slot.offset + num_bytes(slot) for slot in slots), default=0)


def _runs(shapes: Mapping[str, Sequence[int]]) -> list[list[str]]:
    """Returns the names in order, those of one fused matrix together."""
    runs: list[list[str]] = []
    placed: set[str] = set()
    for name in shapes:
        if name in placed:
            continue
        run = [member for member in _run_of(name) if member in shapes]
        runs.append(run)
        placed.update(run)
    return runs


def _run_of(name: str) -> list[str]:
    match = _MEMBER.search(name)
    if match is None:
        return [name]
    run = next(run for run in _FUSED_RUNS if match[1] in run)
    return [f"{name[: match.start()]}{member}{name[match.end() :]}" for member in run]
