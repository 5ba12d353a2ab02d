"""Plans buckets, and fills them: each bucket holds some of the policy's tensors side by side in one buffer.

    sharded trainer ──gather──▶ one tensor ──Form──▶ its pieces ──copy──▶ bucket ──carrier──▶ engines

The plan depends only on names, shapes and the size limit, so every rank computes the same one. Within a
bucket the pieces with the widest numbers come first, without gaps: every piece then begins at a multiple of
its item size, which a typed view of the buffer needs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

import torch

from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.runner.contracts.weight_updates import Checksums, TensorSlot
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.server_checksums import ChecksumRecorder
from rlrun.runner.weights.tensor_slots import copy_all, num_bytes, tensors_in


@dataclass(frozen=True, slots=True)
class Bucket:
    """The plan of one bucket: tensors that are sent together."""

    sources: tuple[str, ...]
    """Names of the trainer's tensors, in the order in which they are gathered."""
    slots: tuple[TensorSlot, ...]
    """Offset, dtype and shape of each tensor that the engine gets of them."""
    stage: int = 0
    """Number of the pipeline rank that has these tensors; 0 where buckets are planned without stages."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(map(num_bytes, self.slots))


def plan_stage_buckets(
    shapes: Mapping[str, tuple[int, ...]], stage_of: Mapping[str, int], form: Form, limit: int | None
) -> list[Bucket]:
    """Returns buckets that each hold tensors of one pipeline stage only, in rounds: one of each stage."""
    stages: dict[int, dict[str, tuple[int, ...]]] = {stage: {} for stage in sorted(set(stage_of.values()))}
    for name, shape in shapes.items():
        stages[stage_of[name]][name] = shape
    buckets_of_stages = [
        [replace(bucket, stage=stage) for bucket in plan_buckets(own, form, limit)]
        for stage, own in stages.items()
    ]
    rounds = zip_longest(*buckets_of_stages)
    return [bucket for buckets in rounds for bucket in buckets if bucket is not None]


def plan_buckets(shapes: Mapping[str, tuple[int, ...]], form: Form, limit: int | None) -> list[Bucket]:
    """Returns buckets of at most `limit` bytes, in the order of `shapes`; one bucket where it is None.

    A tensor that is larger than the limit gets a bucket to itself.
    """
    buckets: list[Bucket] = []
    sources: list[str] = []
    pieces: dict[str, TensorInfo] = {}
    filled = 0
    for name, shape in shapes.items():
        pieces_of_tensor = form.described(name, shape)
        size = sum(piece.nbytes for piece in pieces_of_tensor.values())
        if sources and limit is not None and filled + size > limit:
            buckets.append(_bucket(sources, pieces))
            sources, pieces, filled = [], {}, 0
        sources.append(name)
        pieces |= pieces_of_tensor
        filled += size
    return [*buckets, _bucket(sources, pieces)]


class WeightSet:
    """The tensors of one update, gathered one after the other and converted to the form that engines hold.

    Gathering is collective: for each bucket every rank calls either `fill` or `skip`.
    """

    def __init__(
        self,
        tensors: Iterator[tuple[str, torch.Tensor]],
        form: Form,
        recorder: ChecksumRecorder | None = None,
    ) -> None:
        """`recorder`: records the checksums of what is sent, to compare them with what arrives."""
        self._tensors = tensors
        self._form = form
        self._recorder = recorder

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields what engines get of the tensors that are not gathered yet."""
        return self._converted(self._tensors)

    def fill(self, buffer: torch.Tensor, bucket: Bucket) -> None:
        """Gathers the next tensors, which must be the bucket's, and copies them into a buffer of bytes.

        Raises SegmentError when a tensor is not the bucket's, has another shape, or is missing.
        """
        self._gather_into(buffer, bucket)
        if self._recorder is not None:
            for name, view in tensors_in(buffer, bucket.slots).items():
                self._recorder.add(name, view)

    def skip(self, bucket: Bucket) -> None:
        """Takes part in gathering the bucket's tensors without keeping them."""
        for _ in islice(self._tensors, len(bucket.sources)):
            pass

    def _gather_into(self, buffer: torch.Tensor, bucket: Bucket) -> None:
        gathered = islice(self._tensors, len(bucket.sources))
        copy_all(tensors_in(buffer, bucket.slots), self._converted(gathered))

    def _converted(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        return (piece for name, tensor in tensors for piece in self._form.pieces(name, tensor))

    def checksums(self) -> Checksums | None:
        """Returns the checksums of all tensors that were copied; None without a recorder."""
        return None if self._recorder is None else self._recorder.checksums()


def _bucket(sources: list[str], pieces: Mapping[str, TensorInfo]) -> Bucket:
    slots: list[TensorSlot] = []
    offset = 0
    for name, piece in sorted(pieces.items(), key=lambda item: -item[1].dtype.itemsize):
        dtype = str(piece.dtype).removeprefix("torch.")
        slots.append(TensorSlot(name, dtype, piece.shape, offset))  # type: ignore[arg-type]
        offset += num_bytes(slots[-1])
    return Bucket(tuple(sources), tuple(slots))
