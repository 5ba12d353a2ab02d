"""Decides which rows get drafts and how long they are, and allocates their blocks of the cache."""

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.decode_pass import DecodePass, PaddedSize, drafted_pass
from rlrun.runner.engines.native.engine.drafts import Drafts, History
from rlrun.runner.engines.native.engine.rows import Field, Rows
from rlrun.runner.engines.native.model.cache import BlockPool

FREE_TOKENS = {"cpu": 12, "cuda": 128}
"""How many tokens of a pass count as much as what every pass costs; a lower number makes fewer drafts. On a
CPU with AVX-512, 12 gave more tokens per second than 3 and 6 (benchmarks/speculation.py)."""
MAX_ROWS = 4
"""With more running samples than this many times `FREE_TOKENS` no draft is looked for: a guess would have to
be right four times in five."""
FIRST_DRAFT = 16
"""Tokens that a sample has before its first draft: to index a prompt and its answers does not pay for answers
that end before."""
MAX_PAUSE = 15
"""Most passes for which no draft is looked for after none was worth while."""


class Speculation:
    """The drafts of an engine's running samples.

    Its decisions depend on tokens, never on time: the same requests to an idle engine get the same drafts.
    """

    def __init__(self, rows: Rows, pool: BlockPool, device: str, longest: int) -> None:
        """`device`: its type; `longest`: most tokens of a draft."""
        self._rows, self._pool = rows, pool
        self._free_tokens = FREE_TOKENS.get(device, FREE_TOKENS["cpu"])
        self._longest = longest
        self.forget()

    def forget(self) -> None:
        """Forgets earlier requests; call it while the engine is idle."""
        self._drafts = Drafts()
        self._pause = self._next_pause = 0

    def plan(self, padded: PaddedSize) -> DecodePass | None:
        """Returns the next pass; None if no draft is worth while."""
        if self._rows.count > MAX_ROWS * self._free_tokens:
            return None
        if self._pause:
            self._pause -= 1
            return None
        drafts = self._choose()
        if not any(drafts):
            self._pause = self._next_pause = min(2 * self._next_pause + 1, MAX_PAUSE)
            return None
        self._next_pause = 0
        blocks = self._allocate(drafts)
        return drafted_pass(self._rows, drafts, blocks, self._pool.block, padded)

    def settle(self, decoded: DecodePass) -> None:
        """Frees the blocks of wrong drafts, and finds the slots of the rows' newest tokens."""
        rows, block = self._rows, self._pool.block
        drafted = np.flatnonzero(decoded.lengths)
        newest = rows.ints[Field.GENERATED, drafted] - 1
        begins = rows.suffix_tables[rows.ints[Field.SEAT, drafted], newest // block].astype(np.int64) * block
        # 0: the token begins a block, which is not allocated yet.
        rows.ints[Field.SLOT, drafted] = np.where(newest % block, begins + newest % block, 0)
        for row, blocks in decoded.extra_blocks.items():
            cached = int(rows.ints[Field.GENERATED, row]) - 1
            used = self._pool.blocks_for(cached) - self._pool.blocks_for(int(decoded.generated[row]))
            self._pool.give_back(blocks[used:])

    def _choose(self) -> list[list[int]]:
        """Returns a draft for each row, empty where it would not pay.

        A pass of R tokens takes time in proportion to `FREE_TOKENS` + R, and yields N new ones. One more
        token of a draft pays if its probability is above N divided by that.
        """
        yielded, size = float(self._rows.count), self._rows.count
        fields = self._rows.ints[[Field.SEAT, Field.GENERATED, Field.MAX_NEW], :size].T.tolist()
        drafts: list[list[int]] = []
        for row, (seat, generated, most) in enumerate(fields):
            if generated < FIRST_DRAFT:
                drafts.append([])
                continue
            history = self._history(row, seat, generated)
            guesses = self._drafts.guess(history, min(self._longest, most - generated - 1))
            probability, length = self._drafts.reliability(history.matched), 0
            while length < len(guesses) and probability * (self._free_tokens + size) > yielded:
                yielded += probability
                size += 1
                length += 1
                probability *= self._drafts.reliability(history.matched + length)
            drafts.append(guesses[:length])
        return drafts

    def _history(self, row: int, seat: int, generated: int) -> History:
        """Returns the history of a row's sample, up to its newest token."""
        entry = self._rows.entries[row]
        if entry.history is None:
            entry.history = self._drafts.begin(entry.sample)
        known = len(entry.history.text) - entry.history.earlier
        self._drafts.extend(entry.history, self._rows.tokens[seat, known:generated].tolist())
        return entry.history

    def _allocate(self, drafts: list[list[int]]) -> dict[int, NDArray[np.int32]]:
        """Allocates the blocks that drafts need behind those of their rows; shortens drafts where too few
        blocks are free.
        """
        extra_blocks = {}
        for row, draft in enumerate(drafts):
            seat, generated = self._rows.ints[[Field.SEAT, Field.GENERATED], row].tolist()
            present = self._pool.blocks_for(generated)
            count = self._pool.blocks_for(generated + len(draft)) - present
            if count > self._pool.free:
                del draft[present * self._pool.block - generated :]
            elif count:
                extra_blocks[row] = self._pool.take(count)
                self._rows.suffix_tables[seat, present : present + count] = extra_blocks[row]
        return extra_blocks
