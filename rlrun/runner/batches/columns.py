"""Converts training sequences to a few long arrays: the cost of sending them grows with their number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.sampling_mask import SamplingMask, joined_masks
from rlrun.runner.contracts.carriers import PER_TOKEN, ImagePatches, TrainSequence

Array = NDArray[Any]
JoinedArrays = tuple[list[int], list[int], Array]
"""Arrays by index, as indices, lengths and one long array."""


@dataclass(frozen=True, slots=True)
class Columns:
    """N sequences of P + R tokens each, end to end."""

    indices: NDArray[np.int64]
    """`[N]` index of each sequence in the step's list."""
    lengths: NDArray[np.int64]
    """`[N]` P + R of each sequence."""
    prompt_lengths: NDArray[np.int64]
    """`[N]` P of each sequence."""
    executions: tuple[str, ...]
    arrays: Mapping[str, NDArray[Any]]
    """`[sum of P + R, …]` or `[sum of R]`: the sequences' per-token arrays (`PER_TOKEN`), by their names."""
    sampling_mask: SamplingMask | None
    """The mask of all `sum of R` tokens."""
    images: tuple[ImagePatches, ...] = ()
    """The images of all sequences, each once."""
    sequence_images: tuple[tuple[int, ...], ...] = ()
    """`[N]` the positions in `images` of each sequence's images; empty if no sequence has images."""
    image_starts: tuple[tuple[int, ...], ...] = ()
    """`[N]` where each sequence's images begin in its tokens; empty if no sequence has images."""


def to_columns(sequences: Sequence[TrainSequence], indices: Sequence[int]) -> Columns:
    """Returns the sequences at `indices` as columns. An optional field is set for all of them or for none."""
    chosen = [sequences[index] for index in indices]
    images = {patches.digest: patches for sequence in chosen for patches in sequence.images}
    positions = {digest: position for position, digest in enumerate(images)}
    pictured = chosen if images else []
    return Columns(
        indices=np.array(indices, dtype=np.int64),
        lengths=np.array([len(sequence.tokens) for sequence in chosen], dtype=np.int64),
        prompt_lengths=np.array([sequence.prompt_length for sequence in chosen], dtype=np.int64),
        executions=tuple(sequence.execution for sequence in chosen),
        arrays=_joined(chosen),
        sampling_mask=joined_masks(
            [sequence.sampling_mask for sequence in chosen], [len(sequence.loss_mask) for sequence in chosen]
        ),
        images=tuple(replace(patches, placed=None) for patches in images.values()),
        sequence_images=tuple(
            tuple(positions[patches.digest] for patches in sequence.images) for sequence in pictured
        ),
        image_starts=tuple(sequence.image_starts for sequence in pictured),
    )


def from_columns(columns: Columns) -> dict[int, TrainSequence]:
    """Returns the sequences by their index in the step's list; their arrays are views."""
    response_ends = np.cumsum(columns.lengths - columns.prompt_lengths)
    masks = _split_mask(columns.sampling_mask, response_ends)
    starts = np.concatenate(
        [[0], np.cumsum(columns.lengths)]
    ).tolist()  # slices by Python's numbers are faster
    response_starts, prompt_lengths = [0, *response_ends.tolist()], columns.prompt_lengths.tolist()
    arrays = [(name, array, PER_TOKEN[name].length == "P + R") for name, array in columns.arrays.items()]
    sequences = {}
    for row, index in enumerate(columns.indices.tolist()):
        own = slice(starts[row], starts[row + 1])
        response = slice(response_starts[row], response_starts[row + 1])
        parts = {name: array[own if whole else response] for name, array, whole in arrays}
        sequences[index] = TrainSequence(
            **parts,
            prompt_length=prompt_lengths[row],
            execution=columns.executions[row],
            sampling_mask=masks[row],
            images=tuple(columns.images[number] for number in columns.sequence_images[row])
            if columns.images
            else (),
            image_starts=columns.image_starts[row] if columns.images else (),
        )
    return sequences


def join_arrays(arrays: Mapping[int, Array]) -> JoinedArrays:
    """Returns arrays by index as indices, lengths and one long array."""
    return list(arrays), [len(array) for array in arrays.values()], _concatenate(list(arrays.values()))


def split_arrays(indices: Sequence[int], lengths: Sequence[int], values: Array) -> dict[int, Array]:
    """Inverts `join_arrays`."""
    arrays = np.split(values, np.cumsum(lengths)[:-1])
    return dict(zip(indices, arrays, strict=True)) if len(indices) else {}


def _concatenate(arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.float32)


def _joined(sequences: Sequence[TrainSequence]) -> dict[str, NDArray[Any]]:
    """Returns each per-token array of all sequences, end to end."""
    joined = {}
    for name, mark in PER_TOKEN.items():
        arrays = list(map(attrgetter(name), sequences))
        kinds = set(map(type, arrays))  # arrays, or None
        assert len(kinds) <= 1, f"{name} for some sequences and not for others"
        if np.ndarray in kinds:
            joined[name] = np.concatenate(arrays, dtype=mark.dtype)
    return joined


def _split_mask(mask: SamplingMask | None, ends: NDArray[np.int64]) -> list[SamplingMask | None]:
    """Returns the mask of each sequence; `ends` are the ends of their responses."""
    if mask is None:
        return [None] * len(ends)
    id_ends = (
        np.cumsum(mask.lengths, dtype=np.int64)[ends - 1] if len(mask) else np.zeros(len(ends), np.int64)
    )
    id_ends = np.where(ends > 0, id_ends, 0)
    ids, lengths = np.split(mask.ids, id_ends[:-1]), np.split(mask.lengths, ends[:-1])
    return [SamplingMask(own, counts) for own, counts in zip(ids, lengths, strict=True)]
