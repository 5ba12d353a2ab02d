"""The step from hidden states to tokens for the rows of a scheduler."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.rows import Field, RowMasks, Rows
from rlrun.runner.engines.native.engine.stops import StopTokens
from rlrun.runner.engines.native.model import native_ops
from rlrun.runner.engines.native.model.forward import Model
from rlrun.runner.engines.native.model.sampling import Limits, sample, sample_with_masks

LOGITS_BYTES = 24 << 20
"""Logits held at a time: glibc recycles pieces below 32 MB and maps larger ones anew each time."""


class Drawn(NamedTuple):
    """One token for each of B rows."""

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    """Of the whole vocabulary's distribution."""
    masks: RowMasks | None
    """What they were drawn from; None where no row records it."""


class Sampler:
    """Draws one token for each of a range of rows, a chunk of logits at a time."""

    def __init__(self, model: Model, rows: Rows, stop_tokens: StopTokens) -> None:
        self._model = model
        self._rows = rows
        self._stop_tokens = stop_tokens
        embedding = model.weights.embedding
        self._chunk = max(1, LOGITS_BYTES // (len(embedding) * model.logit_bytes))
        self._device = embedding.device
        self._on_cpu = self._device.type == "cpu"
        self._sample = native_ops.sample if model.native else sample
        self._sample_with_masks = native_ops.sample_with_masks if model.native else sample_with_masks

    def next_tokens(self, hidden: torch.Tensor) -> Drawn:
        """Tokens and log-probs `[B]` of rows 0 to B from their states `[B, H]`."""
        chunks = [
            self._draw(start, self._model.logits(hidden[start : start + self._chunk]))
            for start in range(0, len(hidden), self._chunk)
        ]
        return _join(chunks)

    def first_tokens(self, first: int, logits: Sequence[torch.Tensor]) -> Drawn:
        """The same for rows from `first` on, each with its prompt's logits `[1, V]`."""
        chunks = [
            self._draw(first + start, torch.cat(tuple(logits[start : start + self._chunk])))
            for start in range(0, len(logits), self._chunk)
        ]
        return _join(chunks)

    def _draw(self, start: int, logits: torch.Tensor) -> Drawn:
        rows = slice(start, start + len(logits))
        ints, floats = self._rows.ints[:, rows], self._rows.floats[:, rows]
        temperatures, seeds = self._move(floats[0]), self._move(ints[Field.SEED])
        limits = self._limits(ints, floats) if ints[Field.CONSTRAINED].any() else None
        # A draw belongs to the position of the token it follows.
        inputs = logits, temperatures, seeds, self._move(ints[Field.POSITION])
        if not ints[Field.MASKED].any():
            tokens, log_probs = self._sample(*inputs, limits)
            return Drawn(tokens.cpu().numpy(), log_probs.cpu().numpy(), None)
        assert limits is not None, "a masked row is limited by top-k or top-p"
        tokens, log_probs, masks = self._sample_with_masks(*inputs, limits)
        parts = RowMasks(*(values.cpu().numpy() for values in masks))
        return Drawn(tokens.cpu().numpy(), log_probs.cpu().numpy(), parts)

    def _limits(self, ints: NDArray[np.int64], floats: NDArray[np.float32]) -> Limits:
        short = ints[Field.GENERATED] < ints[Field.MIN_NEW]
        forbidden = self._stop_tokens.table[np.where(short, ints[Field.STOP_SET], 0)]
        return Limits(self._move(floats[1]), self._move(ints[Field.TOP_K]), self._move(forbidden))

    def _move(self, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self._device)


def _join(chunks: list[Drawn]) -> Drawn:
    if len(chunks) == 1:
        return chunks[0]
    tokens, log_probs, _ = zip(*chunks, strict=True)
    return Drawn(np.concatenate(tokens), np.concatenate(log_probs), _join_masks(chunks))


def _join_masks(chunks: list[Drawn]) -> RowMasks | None:
    """Chunks none of whose rows records anything count as drawn from the whole vocabulary."""
    if all(chunk.masks is None for chunk in chunks):
        return None
    parts = [chunk.masks or _unrecorded(chunk) for chunk in chunks]
    columns = zip(*((part.log_probs, part.lengths, part.ids) for part in parts), strict=True)
    return RowMasks(*map(np.concatenate, columns))


def _unrecorded(drawn: Drawn) -> RowMasks:
    return RowMasks(drawn.log_probs, np.zeros(len(drawn.tokens), np.int64), np.zeros(0, np.int32))
