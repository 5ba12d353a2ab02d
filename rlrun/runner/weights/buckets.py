"""A policy's weights in buckets: some tensors side by side in one buffer, of which there are few.

    sharded trainer ──gather──▶ one tensor ──form──▶ its pieces ──copy──▶ bucket ──carrier──▶ engines

Which tensors share a bucket depends on names, shapes and the limit alone, so that every rank knows it. Pieces
with wide numbers come first and there are no gaps: each lies at a multiple of its own width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod

import torch

from rlrun.converters.tensors.precision import dtype_named
from rlrun.runner.contracts.carriers import Checksums, TensorSlot
from rlrun.runner.weights.fill import fill
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.server_checksums import Fingerprints


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is sent together."""

    sources: tuple[str, ...]
    """The trainer's tensors, in the order in which they come."""
    slots: tuple[TensorSlot, ...]
    """Where the engine's lie in the buffer."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(bytes_of(slot) for slot in self.slots)


def plan_buckets(shapes: Mapping[str, tuple[int, ...]], form: Form, limit: int | None) -> list[Bucket]:
    """Buckets of at most `limit` bytes, larger only where a single tensor is; None: one bucket."""
    buckets: list[Bucket] = []
    sources: list[str] = []
    pieces: dict[str, tuple[str, tuple[int, ...], int]] = {}
    filled = 0
    for name, shape in shapes.items():
        described = form.described(name, shape)
        size = sum(one.nbytes for one in described.values())
        if sources and limit is not None and filled + size > limit:
            buckets.append(_bucket(sources, pieces))
            sources, pieces, filled = [], {}, 0
        sources.append(name)
        filled += size
        for piece, one in described.items():
            pieces[piece] = (str(one.dtype).removeprefix("torch."), one.shape, one.dtype.itemsize)
    return [*buckets, _bucket(sources, pieces)]


def bytes_of(slot: TensorSlot) -> int:
    """Size of one tensor."""
    return prod(slot.shape) * dtype_named(slot.dtype).itemsize


def views_of(buffer: torch.Tensor, bucket: Bucket) -> dict[str, torch.Tensor]:
    """A bucket's tensors in a buffer of bytes."""
    return {
        slot.name: buffer[slot.offset : slot.offset + bytes_of(slot)]
        .view(dtype_named(slot.dtype))
        .view(slot.shape)
        for slot in bucket.slots
    }


class WeightSet:
    """One set of weights on its way: tensors of the trainer, in order, and what engines are given of them."""

    def __init__(
        self,
        tensors: Iterator[tuple[str, torch.Tensor]],
        form: Form,
        fingerprints: Fingerprints | None = None,
    ) -> None:
        """`fingerprints` see what goes out, so that it can be compared with what arrived."""
        self._tensors = tensors
        self._form = form
        self._fingerprints = fingerprints

    def put(self, views: Mapping[str, torch.Tensor], bucket: Bucket) -> None:
        """Copy the next tensors, which must be the bucket's, to where they belong.

        SegmentError when they are others, of other shapes, or too few.
        """
        own = islice(self._tensors, len(bucket.sources))
        fill(dict(views), (piece for name, tensor in own for piece in self._form.pieces(name, tensor)))
        if self._fingerprints is not None:
            for slot in bucket.slots:
                self._fingerprints.add(slot.name, views[slot.name])

    def pass_by(self, bucket: Bucket) -> None:
        """Gather the bucket's tensors with the other ranks, for nobody here."""
        for _ in islice(self._tensors, len(bucket.sources)):
            pass

    def checksums(self) -> Checksums | None:
        """Of everything that was put."""
        return None if self._fingerprints is None else self._fingerprints.checksums()


def _bucket(sources: list[str], pieces: Mapping[str, tuple[str, tuple[int, ...], int]]) -> Bucket:
    slots: list[TensorSlot] = []
    offset = 0
    for name, (dtype, shape, _) in sorted(pieces.items(), key=lambda item: -item[1][2]):
        slots.append(TensorSlot(name, dtype, shape, offset))  # type: ignore[arg-type]
        offset += bytes_of(slots[-1])
    return Bucket(tuple(sources), tuple(slots))
