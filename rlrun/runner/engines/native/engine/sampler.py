"""Draws the next token of each row from its hidden state, and the tokens behind its draft."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.rows import Field, RowMasks
from rlrun.runner.engines.native.engine.stops import StopTokens
from rlrun.runner.engines.native.model import native_ops
from rlrun.runner.engines.native.model.device_copies import to_device
from rlrun.runner.engines.native.model.forward import Model
from rlrun.runner.engines.native.model.sampling import Limits, sample, sample_with_masks

CPU_LOGITS_BYTES = 24 << 20
"""Most bytes of logits that exist at a time on a CPU. glibc reuses allocations below 32 MB; it maps larger
ones again each time, and touching fresh pages costs more than the arithmetic."""
GPU_LOGITS_BYTES = 512 << 20
"""Most bytes of logits that exist at a time on a GPU, whose allocator reuses memory of any size: in bfloat16,
1,766 rows of a vocabulary of 152k. Drawing from them takes several float32 copies besides."""


class DrawnTokens(NamedTuple):
    """One drawn token for each of B rows."""

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    """Log-probs over the whole vocabulary."""
    masks: RowMasks | None
    """The tokens that they were drawn from; None if no row records them."""


class _DeviceDraw(NamedTuple):
    """As `DrawnTokens`, still on the device."""

    tokens: torch.Tensor
    log_probs: torch.Tensor
    masks: RowMasks | None


class DrawInputs(NamedTuple):
    """What B tokens are drawn with, as in `Rows`."""

    ints: NDArray[np.int64]
    """`[fields, B]`"""
    floats: NDArray[np.float32]
    """`[2, B]`"""


class Sampler:
    """Draws tokens, computing one chunk of logits at a time."""

    def __init__(self, model: Model, stop_tokens: StopTokens) -> None:
        self._model = model
        self._stop_tokens = stop_tokens
        self._device = model.device
        most_bytes = CPU_LOGITS_BYTES if self._device.type == "cpu" else GPU_LOGITS_BYTES
        self._chunk = max(1, most_bytes // (len(model.weights.embedding) * model.logit_bytes))
        self._sample = native_ops.sample if model.native else sample
        self._sample_with_masks = native_ops.sample_with_masks if model.native else sample_with_masks
        self._stop_table = stop_tokens.table
        self._device_stop_table = torch.from_numpy(self._stop_table).to(self._device)

    def next_tokens(self, inputs: DrawInputs, hidden: torch.Tensor) -> DrawnTokens:
        """Draws a token from each of the hidden states `[B, H]`."""
        chunks = [
            self._draw(
                _part(inputs, start, self._chunk), self._model.logits(hidden[start : start + self._chunk])
            )
            for start in range(0, len(hidden), self._chunk)
        ]
        return _to_host(chunks)

    def first_tokens(self, inputs: DrawInputs, logits: Sequence[torch.Tensor]) -> DrawnTokens:
        """Draws the first token of each row from its prompt's logits `[1, V]`."""
        chunks = [
            self._draw(
                _part(inputs, start, self._chunk), torch.cat(tuple(logits[start : start + self._chunk]))
            )
            for start in range(0, len(logits), self._chunk)
        ]
        return _to_host(chunks)

    def _draw(self, drawn_with: DrawInputs, logits: torch.Tensor) -> _DeviceDraw:
        ints, floats = drawn_with
        # The random number depends on the position of the token before, see `model.sampling`.
        arrays = [floats[0], ints[Field.SEED], ints[Field.POSITION]]
        constrained = bool(ints[Field.CONSTRAINED].any())
        if constrained:
            below_minimum = ints[Field.GENERATED] < ints[Field.MIN_NEW]
            arrays += [floats[1], ints[Field.TOP_K], np.where(below_minimum, ints[Field.STOP_SET], 0)]
        temperatures, seeds, positions, *bounds = to_device(arrays, self._device)
        limits = None
        if constrained:
            top_ps, top_ks, stop_sets = bounds
            ranked = bool(((floats[1] < 1) | (ints[Field.TOP_K] > 0)).any())
            limits = Limits(top_ps, top_ks, self._stop_tokens_of(stop_sets), ranked)
        inputs = logits, temperatures, seeds, positions
        if not ints[Field.MASKED].any():
            return _DeviceDraw(*self._sample(*inputs, limits), None)
        assert limits is not None, "a masked row is limited by top-k or top-p"
        tokens, log_probs, masks = self._sample_with_masks(*inputs, limits)
        return _DeviceDraw(tokens, log_probs, RowMasks(*(values.cpu().numpy() for values in masks)))

    def _stop_tokens_of(self, stop_sets: torch.Tensor) -> torch.Tensor:
        """Returns the rows `[B, V]` of the table of stop tokens, which is on the device."""
        if self._stop_tokens.table is not self._stop_table:  # replaced whenever a set is added or forgotten
            self._stop_table = self._stop_tokens.table
            self._device_stop_table = torch.from_numpy(self._stop_table).to(self._device)
        return self._device_stop_table[stop_sets]


def _part(inputs: DrawInputs, start: int, length: int) -> DrawInputs:
    """Returns the inputs of the draws from `start` on, at most `length`."""
    columns = slice(start, start + length)
    return DrawInputs(inputs.ints[:, columns], inputs.floats[:, columns])


def _to_host(chunks: list[_DeviceDraw]) -> DrawnTokens:
    """Returns the tokens of all chunks, which a GPU sends in one copy."""
    tokens = torch.cat([chunk.tokens for chunk in chunks]) if len(chunks) > 1 else chunks[0].tokens
    log_probs = torch.cat([chunk.log_probs for chunk in chunks]) if len(chunks) > 1 else chunks[0].log_probs
    if tokens.device.type == "cpu":
        return DrawnTokens(tokens.numpy(), log_probs.numpy(), _join_masks(chunks))
    both = torch.stack((tokens.int(), log_probs.view(torch.int32))).cpu().numpy()
    return DrawnTokens(both[0].astype(np.int64), both[1].view(np.float32), _join_masks(chunks))


def _join_masks(chunks: list[_DeviceDraw]) -> RowMasks | None:
    """Joins the masks of chunks; rows of a chunk without masks count as drawn from the whole vocabulary."""
    if all(chunk.masks is None for chunk in chunks):
        return None
    masks = [chunk.masks or _empty_masks(chunk) for chunk in chunks]
    columns = zip(*((mask.log_probs, mask.lengths, mask.ids) for mask in masks), strict=True)
    return RowMasks(*map(np.concatenate, columns))


def _empty_masks(drawn: _DeviceDraw) -> RowMasks:
    return RowMasks(
        drawn.log_probs.cpu().numpy(), np.zeros(len(drawn.tokens), np.int64), np.zeros(0, np.int32)
    )
