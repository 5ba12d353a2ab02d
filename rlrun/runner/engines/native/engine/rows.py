"""The running samples as columns of numbers: row i of every array is the i-th running sample.

Rows stay dense: finished ones are squeezed out, the order is kept. What is large stands still at a row's
*seat* (block tables, output buffers) and only the seat's number moves. All bookkeeping of a step is a few
numpy operations over all rows at once.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.requests import Group, Job
from rlrun.runner.engines.native.model.cache import BLOCK, blocks_for


class Field(IntEnum):
    """Integer columns; the first seven are a batches.DecodeBatch."""

    TOKEN = 0
    """The newest token, not yet processed; of the prompt's last one until there is another."""
    POSITION = 1
    """Its position in the whole sequence."""
    SLOT = 2
    """Where its keys and values go; a multiple of the block size when the row needs a new block for it."""
    GENERATED = 3
    """Tokens generated since the prefill, the newest included."""
    SEAT = 4
    PREFIX_SEAT = 5
    PREFIX_LENGTH = 6
    SEED = 7
    MIN_NEW = 8
    MAX_NEW = 9
    STOP_SET = 10
    """Row of the stop tokens' table."""
    STRING_SET = 11
    """Row of the stop strings' table."""
    TOP_K = 12
    CONSTRAINED = 13
    """1 where the sample may not draw from all tokens: top-k, top-p, or a minimum length."""
    MASKED = 14
    """1 where the tokens that each token was drawn from are recorded."""


_STEPPING = slice(Field.POSITION, Field.GENERATED + 1)


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The tokens that a range of rows drew from in one step."""

    log_probs: NDArray[np.float32]
    """Of the drawn tokens, over the tokens that they were drawn from."""
    lengths: NDArray[np.int64]
    ids: NDArray[np.int32]
    """Row after row."""


@dataclass(slots=True)
class Entry:
    """The objects behind a row."""

    job: Job
    group: Group


class Rows:
    """Up to `capacity` rows. Beyond the last, the arrays hold padding: a token at position 0 of block 0."""

    def __init__(self, capacity: int, padded: int, table_width: int) -> None:
        """`padded`: how many rows a step may be padded to; `table_width`: blocks of a sample at most."""
        self.capacity = capacity
        self.count = 0
        self.ints = np.zeros((len(Field), padded), np.int64)
        self.floats = np.ones((2, padded), np.float32)
        """Temperature, top-p."""
        self.entries: list[Entry] = []
        # One seat more than rows, for padding: its table stays zero.
        self.prefix_tables = np.zeros((capacity + 1, table_width), np.int32)
        self.suffix_tables = np.zeros((capacity + 1, table_width), np.int32)
        self.tokens = np.zeros((capacity, 64), np.int32)
        """Generated tokens, by seat."""
        self.log_probs = np.zeros((capacity, 64), np.float32)
        self._seats = list(range(capacity - 1, -1, -1))
        self._prefix_seats = list(range(capacity - 1, -1, -1))
        self._pad(0)

    def take_prefix_seat(self, blocks: NDArray[np.int32]) -> int:
        """A row of `prefix_tables` for a prompt in `blocks`."""
        seat = self._prefix_seats.pop()
        self.prefix_tables[seat, : len(blocks)] = blocks
        return seat

    def free_prefix_seat(self, seat: int) -> None:
        """Return it."""
        self._prefix_seats.append(seat)

    @property
    def free_prefix_seats(self) -> int:
        """Prompts that can be added."""
        return len(self._prefix_seats)

    def append(self, entry: Entry, stop_set: int, string_set: int) -> None:
        """Add a row for a sample whose prompt is in the cache; it has no token yet."""
        job, params, row = entry.job, entry.job.params, self.count
        assert entry.group.seat is not None, "its prompt must be in the cache"
        done = len(job.tokens)
        column = self.ints[:, row]
        column[Field.POSITION] = len(entry.group.prompt) - 1
        column[Field.SLOT] = -1
        column[Field.GENERATED] = 0
        column[Field.PREFIX_LENGTH] = len(entry.group.prompt)
        column[Field.SEAT] = self._seats.pop()
        column[Field.PREFIX_SEAT] = entry.group.seat
        column[Field.SEED] = job.seed
        column[Field.MIN_NEW] = params.min_new_tokens - done
        column[Field.MAX_NEW] = params.max_new_tokens - done
        column[Field.STOP_SET] = stop_set
        column[Field.STRING_SET] = string_set
        column[Field.TOP_K] = params.top_k
        column[Field.CONSTRAINED] = params.top_k > 0 or params.top_p < 1 or params.min_new_tokens > done
        column[Field.MASKED] = job.masked
        self.floats[:, row] = params.temperature, params.top_p
        self.entries.append(entry)
        self.count += 1
        self._widen(params.max_new_tokens - done)

    def starting_blocks(self) -> NDArray[np.int64]:
        """Rows whose newest token is the first of a block."""
        return np.flatnonzero(self.ints[Field.SLOT, : self.count] % BLOCK == 0)

    def add_blocks(self, rows: NDArray[np.int64], blocks: NDArray[np.int32]) -> None:
        """Give each of `rows` the block that its newest token begins."""
        columns = self.ints[:, rows]
        self.suffix_tables[columns[Field.SEAT], (columns[Field.GENERATED] - 1) // BLOCK] = blocks
        self.ints[Field.SLOT, rows] = blocks.astype(np.int64) * BLOCK

    def record(self, first: int, tokens: NDArray[np.int64], log_probs: NDArray[np.float32]) -> None:
        """Append one token to every row from `first` on."""
        rows = self.ints[:, first : self.count]
        seats, generated = rows[Field.SEAT], rows[Field.GENERATED]
        self.tokens[seats, generated] = tokens
        self.log_probs[seats, generated] = log_probs
        rows[Field.TOKEN] = tokens
        rows[_STEPPING] += 1

    def record_masks(self, first: int, masks: RowMasks) -> None:
        """Hand each masked row from `first` on what its newest token was drawn from."""
        ends = np.cumsum(masks.lengths)
        for row in np.flatnonzero(self.ints[Field.MASKED, first : self.count]).tolist():
            job = self.entries[first + row].job
            job.masks.append(masks.ids[ends[row] - masks.lengths[row] : ends[row]])
            job.mask_log_probs.append(float(masks.log_probs[row]))

    def made(self, row: int) -> NDArray[np.int32]:
        """All tokens of a row's sample, those from before a retraction too."""
        seat, generated = self.ints[Field.SEAT, row], self.ints[Field.GENERATED, row]
        return np.concatenate([self.entries[row].job.tokens, self.tokens[seat, :generated]])

    def collect(self, row: int) -> None:
        """Hand the row's tokens to its job."""
        job, seat, generated = self.entries[row].job, *self.ints[[Field.SEAT, Field.GENERATED], row]
        job.tokens = self.made(row)
        job.log_probs = np.concatenate([job.log_probs, self.log_probs[seat, :generated]])

    def blocks_of(self, row: int) -> NDArray[np.int32]:
        """Blocks of the row's own processed tokens (the newest is not processed)."""
        processed = max(int(self.ints[Field.GENERATED, row]) - 1, 0)
        return self.suffix_tables[self.ints[Field.SEAT, row], : blocks_for(processed)]

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Squeeze `rows` out."""
        self._seats.extend(self.ints[Field.SEAT, rows].tolist())
        keep = np.delete(np.arange(self.count), rows)
        self.ints[:, : len(keep)] = self.ints[:, keep]
        self.floats[:, : len(keep)] = self.floats[:, keep]
        gone = set(rows.tolist())
        self.entries = [entry for row, entry in enumerate(self.entries) if row not in gone]
        before, self.count = self.count, len(keep)
        self._pad(self.count, before)

    def _pad(self, start: int, end: int | None = None) -> None:
        self.ints[:, start:end] = 0
        self.ints[Field.GENERATED, start:end] = 1
        self.ints[Field.SEAT, start:end] = self.capacity
        self.ints[Field.PREFIX_SEAT, start:end] = self.capacity
        self.floats[:, start:end] = 1

    def _widen(self, length: int) -> None:
        """Make the output buffers hold `length` tokens."""
        width = self.tokens.shape[1]
        if length > width:
            more = max(length, 2 * width) - width
            self.tokens = np.pad(self.tokens, ((0, 0), (0, more)))
            self.log_probs = np.pad(self.log_probs, ((0, 0), (0, more)))
