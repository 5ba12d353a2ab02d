"""Draws the next token of each row from its hidden state."""

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
"""Most bytes of logits that exist at a time. glibc reuses allocations below 32 MB; it maps larger ones anew
each time, and touching fresh pages costs more than the arithmetic."""


class DrawnTokens(NamedTuple):
    """One drawn token for each of B rows."""

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    """Log-probs over the whole vocabulary."""
    masks: RowMasks | None
    """The tokens that they were drawn from; None if no row records them."""


class Sampler:
    """Draws one token for each of a range of rows, computing one chunk of logits at a time."""

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

    def next_tokens(self, hidden: torch.Tensor) -> DrawnTokens:
        """Draws the next tokens of rows 0 to B from their hidden states `[B, H]`."""
        chunks = [
            self._draw(start, self._model.logits(hidden[start : start + self._chunk]))
            for start in range(0, len(hidden), self._chunk)
        ]
        return _join_chunks(chunks)

    def first_tokens(self, first: int, logits: Sequence[torch.Tensor]) -> DrawnTokens:
        """Draws the first tokens of the rows from `first` on, each from its prompt's logits `[1, V]`."""
        chunks = [
            self._draw(first + start, torch.cat(tuple(logits[start : start + self._chunk])))
            for start in range(0, len(logits), self._chunk)
        ]
        return _join_chunks(chunks)

    def _draw(self, start: int, logits: torch.Tensor) -> DrawnTokens:
        rows = slice(start, start + len(logits))
        ints, floats = self._rows.ints[:, rows], self._rows.floats[:, rows]
        temperatures, seeds = self._to_device(floats[0]), self._to_device(ints[Field.SEED])
        limits = self._limits(ints, floats) if ints[Field.CONSTRAINED].any() else None
        # The random number depends on the position of the token before, see `model.sampling`.
        inputs = logits, temperatures, seeds, self._to_device(ints[Field.POSITION])
        if not ints[Field.MASKED].any():
            tokens, log_probs = self._sample(*inputs, limits)
            return DrawnTokens(tokens.cpu().numpy(), log_probs.cpu().numpy(), None)
        assert limits is not None, "a masked row is limited by top-k or top-p"
        tokens, log_probs, masks = self._sample_with_masks(*inputs, limits)
        row_masks = RowMasks(*(values.cpu().numpy() for values in masks))
        return DrawnTokens(tokens.cpu().numpy(), log_probs.cpu().numpy(), row_masks)

    def _limits(self, ints: NDArray[np.int64], floats: NDArray[np.float32]) -> Limits:
        below_minimum = ints[Field.GENERATED] < ints[Field.MIN_NEW]
        forbidden = self._stop_tokens.table[np.where(below_minimum, ints[Field.STOP_SET], 0)]
        return Limits(
            self._to_device(floats[1]), self._to_device(ints[Field.TOP_K]), self._to_device(forbidden)
        )

    def _to_device(self, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self._device)


def _join_chunks(chunks: list[DrawnTokens]) -> DrawnTokens:
    if len(chunks) == 1:
        return chunks[0]
    tokens, log_probs, _ = zip(*chunks, strict=True)
    return DrawnTokens(np.concatenate(tokens), np.concatenate(log_probs), _join_masks(chunks))


def _join_masks(chunks: list[DrawnTokens]) -> RowMasks | None:
    """Joins the masks of chunks; rows of a chunk without masks count as drawn from the whole vocabulary."""
    if all(chunk.masks is None for chunk in chunks):
        return None
    masks = [chunk.masks or _empty_masks(chunk) for chunk in chunks]
    columns = zip(*((mask.log_probs, mask.lengths, mask.ids) for mask in masks), strict=True)
    return RowMasks(*map(np.concatenate, columns))


def _empty_masks(drawn: DrawnTokens) -> RowMasks:
    return RowMasks(drawn.log_probs, np.zeros(len(drawn.tokens), np.int64), np.zeros(0, np.int32))
