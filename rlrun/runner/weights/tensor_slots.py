"""Lays out the tensors of a checkpoint in one flat buffer, and copies them there.

Matrices that an engine multiplies by together (q, k, v of a layer; its gate and up) follow each other without
a gap, so that the engine can use each run of them as one fused matrix without copying.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch

from rlrun.converters.tensors.precision import keeps_precision, parse_dtype
from rlrun.models.tensor_names import FUSED_RUNS
from rlrun.runner.contracts.weight_updates import TensorSlot

ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector register."""
DTYPES = ("float32", "bfloat16", "float16")
"""Those of weights that engines compute with in place."""

_MEMBER = re.compile(rf"\b({'|'.join(member for run in FUSED_RUNS for member in run)})\b")

Shapes = Mapping[str, Sequence[int]]
"""The shape of each tensor, by its Hugging Face name."""


class SegmentError(ValueError):
    """Raised when weights, or the segment that holds them, differ from what was laid out."""


def layout(shapes: Shapes, dtype: str, start: int = 0) -> tuple[TensorSlot, ...]:
    """Returns the slots of tensors of `dtype`, one after the other from byte `start`; a tensor that is never
    cast is in float32.

    Runs begin at multiples of `ALIGNMENT`; there is no padding between the members of a run (q, k, v; gate,
    up; likewise their biases). The order is that of `shapes`; a run is placed where its first member is.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} of shared weights: it must be one of {', '.join(DTYPES)}")
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
    return prod(slot.shape) * parse_dtype(slot.dtype).itemsize


def end_of(slots: Iterable[TensorSlot]) -> int:
    """Returns the offset of the first byte after the last tensor."""
    return max((slot.offset + num_bytes(slot) for slot in slots), default=0)


def check_slots(slots: Iterable[TensorSlot], start: int, end: int, segment: str) -> None:
    """Raises SegmentError for a tensor outside these bytes, or one whose address would not be aligned."""
    for slot in slots:
        inside = slot.offset >= start and slot.offset + num_bytes(slot) <= end
        if not inside or slot.offset % parse_dtype(slot.dtype).itemsize:
            raise SegmentError(f"{slot.name} is outside segment {segment} or not aligned in it")


def tensors_in(buffer: torch.Tensor, slots: Iterable[TensorSlot]) -> dict[str, torch.Tensor]:
    """Returns views of a buffer of bytes as its tensors, by name."""
    return {
        slot.name: buffer[slot.offset : slot.offset + num_bytes(slot)]
        .view(parse_dtype(slot.dtype))
        .view(slot.shape)
        for slot in slots
    }


def copy_all(views: dict[str, torch.Tensor], tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copies each tensor into the view of its name, converted to the view's dtype; empties `views`.

    Views in host memory can be read when this returns: if tensors come from a GPU, the host waits once, after
    the last of them. Raises SegmentError when a tensor is unknown, comes twice, has another shape, or is
    missing.
    """
    total, copying = len(views), None
    for name, tensor in tensors:
        view = views.pop(name, None)
        if view is None:
            raise SegmentError(f"{name}: not among the weights this segment was laid out for, or sent twice")
        if view.shape != tensor.shape:
            raise SegmentError(
                f"{name} has shape {tuple(tensor.shape)}; the segment was laid out for {tuple(view.shape)}"
            )
        view.copy_(tensor.detach(), non_blocking=True)
        if view.device.type == "cpu" and tensor.is_cuda:
            copying = tensor.device
    if views:
        raise SegmentError(f"{len(views)} of {total} tensors missing, the first: {next(iter(views))}")
    if copying is not None:
        torch.cuda.synchronize(copying)


def check_shapes(shapes: Shapes, needed: Shapes, source: str) -> None:
    """Raises ValueError, naming the source, unless `shapes` has all of the needed tensors; others are
    ignored.
    """
    missing = [name for name in needed if name not in shapes]
    if missing:
        raise ValueError(
            f"{source}: {len(missing)} of {len(needed)} weights are missing, the first is {missing[0]}"
        )
    for name, shape in needed.items():
        if tuple(shapes[name]) != tuple(shape):
            raise ValueError(
                f"{source}: {name} has shape {tuple(shapes[name])}, the model needs {tuple(shape)}"
            )


def _runs(shapes: Shapes) -> list[list[str]]:
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
    run = next(run for run in FUSED_RUNS if match[1] in run)
    return [f"{name[: match.start()]}{member}{name[match.end() :]}" for member in run]
