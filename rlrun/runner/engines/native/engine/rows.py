"""The state of all running samples as arrays; index i of every array is the i-th running sample.

The bookkeeping of a step is a few numpy operations over all rows at once, so rows have to stay dense:
finished rows are removed and the others move up in order. Large data (block tables, output buffers) does not
move: it is stored at the row's *seat*, a fixed index, and only the number of the seat moves.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.drafts import History
from rlrun.runner.engines.native.engine.requests import Group, SampleInProgress
from rlrun.runner.engines.native.model.cache import BLOCK, blocks_for


class Field(IntEnum):
    """The integer fields of a row; the first seven are the `columns` of a `batches.DecodeBatch`."""

    TOKEN = 0
    """The newest token, which has not been through the model yet."""
    POSITION = 1
    """Position of the newest token in the whole sequence, of which images take fewer than their tokens."""
    SLOT = 2
    """Cache slot for its keys and values. A multiple of the block size means: it starts a new block, which
    has to be allocated first."""
    GENERATED = 3
    """Number of tokens generated since the prefill, the newest included."""
    SEAT = 4
    PREFIX_SEAT = 5
    PREFIX_LENGTH = 6
    SEED = 7
    MIN_NEW = 8
    MAX_NEW = 9
    STOP_SET = 10
    """Row of the table of stop tokens."""
    STRING_SET = 11
    """Row of the table of stop strings."""
    TOP_K = 12
    CONSTRAINED = 13
    """1 if the sample may not draw from all tokens, because of top-k, top-p or a minimum length."""
    MASKED = 14
    """1 if the tokens that each token is drawn from are recorded."""


STEPPING = slice(Field.POSITION, Field.GENERATED + 1)
"""Fields that grow by one with every token."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The tokens that B draws of one step were limited to."""

    log_probs: NDArray[np.float32]
    """`[B]` log-probs of the drawn tokens, over the tokens that they were drawn from."""
    lengths: NDArray[np.int64]
    """`[B]` number of those tokens."""
    ids: NDArray[np.int32]
    """`[sum of lengths]` token ids, row after row."""


@dataclass(slots=True)
class RowEntry:
    """The sample of a row, and the group whose prompt it reads from the cache."""

    sample: SampleInProgress
    group: Group
    has_old_weights: bool = False
    """The weights have changed since the row began, so its keys and values are of several versions."""
    history: History | None = None
    """What drafts of its next tokens are guessed from; None until the first draft is looked for."""


class Rows:
    """Up to `capacity` rows, followed by padding: rows with a token at position 0 of block 0."""

    def __init__(self, capacity: int, padded: int, table_width: int, block: int = BLOCK) -> None:
        """`padded`: number of rows with padding; `table_width`: most blocks of a sample; `block`: tokens of a
        block.
        """
        self._block = block
        self.capacity = capacity
        self.count = 0
        self.ints = np.zeros((len(Field), padded), np.int64)
        self.floats = np.ones((2, padded), np.float32)
        """Temperatures and top-p."""
        self.entries: list[RowEntry] = []
        # Padding rows use one additional seat, whose table stays zero: block 0 is the spare block.
        self.prefix_tables = np.zeros((capacity + 1, table_width), np.int32)
        self.suffix_tables = np.zeros((capacity + 1, table_width), np.int32)
        self.tokens = np.zeros((capacity, 64), np.int32)
        """Generated tokens, by seat; `_widen` makes room for longer ones."""
        self.log_probs = np.zeros((capacity, 64), np.float32)
        self._seats = list(range(capacity - 1, -1, -1))
        self._prefix_seats = list(range(capacity - 1, -1, -1))
        self._pad(0)

    def take_prefix_seat(self, blocks: NDArray[np.int32]) -> int:
        """Returns a row of `prefix_tables` for a prompt, filled with its blocks."""
        seat = self._prefix_seats.pop()
        self.prefix_tables[seat, : len(blocks)] = blocks
        return seat

    def free_prefix_seat(self, seat: int) -> None:
        """Frees a row of `prefix_tables`."""
        self._prefix_seats.append(seat)

    @property
    def free_prefix_seats(self) -> int:
        """How many more prompts can be cached."""
        return len(self._prefix_seats)

    def append(self, entry: RowEntry, stop_set: int, string_set: int) -> None:
        """Adds a row for a sample whose prompt is in the cache and that has no token yet."""
        sample, params, row = entry.sample, entry.sample.params, self.count
        assert entry.group.seat is not None, "its prompt must be in the cache"
        done = len(sample.tokens)
        column = self.ints[:, row]
        column[Field.POSITION] = len(entry.group.prompt) - 1 - entry.group.images.lag
        column[Field.SLOT] = -1
        column[Field.GENERATED] = 0
        column[Field.PREFIX_LENGTH] = len(entry.group.prompt)
        column[Field.SEAT] = self._seats.pop()
        column[Field.PREFIX_SEAT] = entry.group.seat
        column[Field.SEED] = sample.seed
        column[Field.MIN_NEW] = params.min_new_tokens - done
        column[Field.MAX_NEW] = params.max_new_tokens - done
        column[Field.STOP_SET] = stop_set
        column[Field.STRING_SET] = string_set
        column[Field.TOP_K] = params.top_k
        column[Field.CONSTRAINED] = params.cuts_vocabulary or params.min_new_tokens > done
        column[Field.MASKED] = sample.options.return_sampling_mask
        self.floats[:, row] = params.temperature, params.top_p
        self.entries.append(entry)
        self.count += 1
        self._widen(params.max_new_tokens - done)

    def starting_blocks(self) -> NDArray[np.int64]:
        """Returns the rows whose newest token is the first of a block."""
        return np.flatnonzero(self.ints[Field.SLOT, : self.count] % self._block == 0)

    def add_blocks(self, rows: NDArray[np.int64], blocks: NDArray[np.int32]) -> None:
        """Assigns each of `rows` the block that its newest token begins."""
        columns = self.ints[:, rows]
        self.suffix_tables[columns[Field.SEAT], (columns[Field.GENERATED] - 1) // self._block] = blocks
        self.ints[Field.SLOT, rows] = blocks.astype(np.int64) * self._block

    def record(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int64], log_probs: NDArray[np.float32]
    ) -> None:
        """Appends one token to each of `rows`."""
        seats, generated = self.ints[Field.SEAT, rows], self.ints[Field.GENERATED, rows]
        self.tokens[seats, generated] = tokens
        self.log_probs[seats, generated] = log_probs
        self.ints[Field.TOKEN, rows] = tokens
        self.ints[STEPPING, rows] += 1

    def record_masks(self, rows: NDArray[np.int64], masks: RowMasks, indices: NDArray[np.int64]) -> None:
        """Appends to the sample of each masked one of `rows` the tokens that its newest token was drawn from:
        those at its index in `masks`.
        """
        ends = np.cumsum(masks.lengths)
        masked = self.ints[Field.MASKED, rows] == 1
        for row, index in zip(rows[masked].tolist(), indices[masked].tolist(), strict=True):
            sample = self.entries[row].sample
            sample.masks.append(masks.ids[ends[index] - masks.lengths[index] : ends[index]])
            sample.mask_log_probs.append(float(masks.log_probs[index]))

    def generated_tokens(self, row: int) -> NDArray[np.int32]:
        """Returns all tokens of a row's sample, including those from before a retraction."""
        seat, generated = self.ints[Field.SEAT, row], self.ints[Field.GENERATED, row]
        return np.concatenate([self.entries[row].sample.tokens, self.tokens[seat, :generated]])

    def cached_tokens(self, row: int) -> NDArray[np.int32]:
        """Returns a row's own tokens whose keys and values are in the cache: all but the newest."""
        seat, generated = self.ints[Field.SEAT, row], self.ints[Field.GENERATED, row]
        return self.tokens[seat, : max(generated - 1, 0)]

    def collect(self, row: int) -> None:
        """Copies a row's tokens and log-probs to its sample."""
        sample, seat, generated = self.entries[row].sample, *self.ints[[Field.SEAT, Field.GENERATED], row]
        sample.tokens = self.generated_tokens(row)
        sample.log_probs = np.concatenate([sample.log_probs, self.log_probs[seat, :generated]])

    def blocks_of(self, row: int) -> NDArray[np.int32]:
        """Returns the blocks of a row's own tokens; the newest token is not in the cache yet."""
        processed = max(int(self.ints[Field.GENERATED, row]) - 1, 0)
        return self.suffix_tables[self.ints[Field.SEAT, row], : blocks_for(processed, self._block)]

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Removes `rows`; the rows behind them move up."""
        self._seats.extend(self.ints[Field.SEAT, rows].tolist())
        keep = np.delete(np.arange(self.count), rows)
        self.ints[:, : len(keep)] = self.ints[:, keep]
        self.floats[:, : len(keep)] = self.floats[:, keep]
        removed = set(rows.tolist())
        self.entries = [entry for row, entry in enumerate(self.entries) if row not in removed]
        before, self.count = self.count, len(keep)
        self._pad(self.count, before)

    def padding(self, count: int) -> NDArray[np.int64]:
        """Returns the fields `[fields, count]` of padding rows."""
        ints = np.zeros((len(Field), count), np.int64)
        ints[Field.GENERATED] = 1
        ints[[Field.SEAT, Field.PREFIX_SEAT]] = self.capacity
        return ints

    def _pad(self, start: int, end: int | None = None) -> None:
        padded = self.ints[:, start:end]
        padded[:] = self.padding(padded.shape[1])
        self.floats[:, start:end] = 1

    def _widen(self, length: int) -> None:
        """Widens the output buffers to at least `length` tokens, and at least twofold, to widen them
        rarely.
        """
        width = self.tokens.shape[1]
        if length > width:
            added = max(length, 2 * width) - width
            self.tokens = np.pad(self.tokens, ((0, 0), (0, added)))
            self.log_probs = np.pad(self.log_probs, ((0, 0), (0, added)))
