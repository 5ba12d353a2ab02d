"""Training sequences as a few long arrays: crossing a process border costs by the array. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.sampling_mask import SamplingMask, joined_masks
from rlrun.runner.contracts.carriers import TrainSequence

Array = NDArray[np.float32]

_NO_TOKENS = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Columns:
    """N sequences of P + R tokens each, end to end."""

    indices: NDArray[np.int64]
    """`[N]` place of each in the step's list."""
    lengths: NDArray[np.int64]
    """`[N]` P + R."""
    prompt_lengths: NDArray[np.int64]
    """`[N]`"""
    executions: tuple[str, ...]
    tokens: NDArray[np.int32]
    """`[sum of P + R]`"""
    loss_mask: Array
    """`[sum of R]`, as are the rest."""
    advantages: Array
    rollout_log_probs: Array
    old_log_probs: Array | None
    reference_log_probs: Array | None
    values: Array | None
    returns: Array | None
    experts: NDArray[np.int16] | None
    """`[sum of P + R, layers × K]`"""
    sampling_mask: SamplingMask | None
    """Of the `sum of R` tokens."""


def to_columns(sequences: Sequence[TrainSequence], indices: Sequence[int]) -> Columns:
    """The sequences at `indices`; what the models said of one it was asked of all."""
    chosen = [sequences[index] for index in indices]
    return Columns(
        indices=np.array(indices, dtype=np.int64),
        lengths=np.array([len(one.tokens) for one in chosen], dtype=np.int64),
        prompt_lengths=np.array([one.prompt_length for one in chosen], dtype=np.int64),
        executions=tuple(one.execution for one in chosen),
        tokens=np.concatenate([one.tokens for one in chosen] or [_NO_TOKENS]),
        loss_mask=_joined([one.loss_mask for one in chosen]),
        advantages=_joined([one.advantages for one in chosen]),
        rollout_log_probs=_joined([one.rollout_log_probs for one in chosen]),
        old_log_probs=_joined_if_any([one.old_log_probs for one in chosen]),
        reference_log_probs=_joined_if_any([one.reference_log_probs for one in chosen]),
        values=_joined_if_any([one.values for one in chosen]),
        returns=_joined_if_any([one.returns for one in chosen]),
        experts=_rows([one.experts for one in chosen]),
        sampling_mask=joined_masks(
            [one.sampling_mask for one in chosen], [len(one.loss_mask) for one in chosen]
        ),
    )


def from_columns(columns: Columns) -> dict[int, TrainSequence]:
    """The sequences by their place in the step's list; their arrays are views."""
    ends = np.cumsum(columns.lengths)
    response_ends = np.cumsum(columns.lengths - columns.prompt_lengths)
    masks = _split_mask(columns.sampling_mask, response_ends)
    sequences = {}
    for row, index in enumerate(columns.indices.tolist()):
        part = slice(ends[row] - columns.lengths[row], ends[row])
        start = response_ends[row] - columns.lengths[row] + columns.prompt_lengths[row]
        response = slice(start, response_ends[row])
        sequences[index] = TrainSequence(
            tokens=columns.tokens[part],
            prompt_length=int(columns.prompt_lengths[row]),
            loss_mask=columns.loss_mask[response],
            advantages=columns.advantages[response],
            rollout_log_probs=columns.rollout_log_probs[response],
            execution=columns.executions[row],
            old_log_probs=_part(columns.old_log_probs, response),
            reference_log_probs=_part(columns.reference_log_probs, response),
            values=_part(columns.values, response),
            returns=_part(columns.returns, response),
            experts=None if columns.experts is None else columns.experts[part],
            sampling_mask=masks[row],
        )
    return sequences


def concatenate_log_probs(log_probs: Mapping[int, Array]) -> tuple[list[int], list[int], Array]:
    """Log-probs by index as places, lengths and one long array."""
    return list(log_probs), [len(one) for one in log_probs.values()], _joined(list(log_probs.values()))


def split_log_probs(places: Sequence[int], lengths: Sequence[int], joined: Array) -> dict[int, Array]:
    """The inverse of `joined_log_probs`."""
    parts = np.split(joined, np.cumsum(lengths)[:-1])
    return dict(zip(places, parts, strict=True)) if len(places) else {}


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays, dtype=np.float32) if arrays else np.zeros(0, dtype=np.float32)


def _joined_if_any(arrays: Sequence[Array | None]) -> Array | None:
    present = [array for array in arrays if array is not None]
    assert len(present) in (0, len(arrays)), "log-probs for some sequences and not for others"
    return _joined(present) if present else None


def _rows(arrays: Sequence[NDArray[np.int16] | None]) -> NDArray[np.int16] | None:
    present = [array for array in arrays if array is not None]
    assert len(present) in (0, len(arrays)), "experts for some sequences and not for others"
    return np.concatenate(present) if present else None


def _split_mask(mask: SamplingMask | None, ends: NDArray[np.int64]) -> list[SamplingMask | None]:
    """The mask of each sequence, whose responses end at these tokens."""
    if mask is None:
        return [None] * len(ends)
    id_ends = (
        np.cumsum(mask.lengths, dtype=np.int64)[ends - 1] if len(mask) else np.zeros(len(ends), np.int64)
    )
    id_ends = np.where(ends > 0, id_ends, 0)
    ids, lengths = np.split(mask.ids, id_ends[:-1]), np.split(mask.lengths, ends[:-1])
    return [SamplingMask(own, counts) for own, counts in zip(ids, lengths, strict=True)]


def _part(array: Array | None, place: slice) -> Array | None:
    return None if array is None else array[place]
