"""Decides which samples are done, with tables over the vocabulary that look up all rows at once."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rlrun.runner.engines.native.engine.requests import SamplingParams
from rlrun.runner.engines.native.engine.rows import Field, Rows

MAX_SETS = 1024
"""Most sets that are remembered, beside those of running samples. Each takes one byte per token of the
vocabulary, and an agent may send a new set with every request."""


class Stops:
    """Decides which rows are done: a stop token, a stop string, or the maximum length."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...], folder: str | Path) -> None:
        """`folder`: the model's folder, which needs a tokenizer for stop strings."""
        self.tokens = StopTokens(vocab_size, eos_token_ids)
        self.strings = StopStrings(vocab_size, folder)

    def sets(self, params: SamplingParams, rows: Rows) -> tuple[int, int]:
        """Returns the rows of both tables for a request; sets that no row uses any more may be forgotten."""
        self.tokens.bound(rows.ints[Field.STOP_SET])
        self.strings.bound(rows.ints[Field.STRING_SET])
        return self.tokens.index(params), self.strings.index(params)

    def ended(self, rows: Rows, chosen: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
        """Returns SGLang's `finish_reason` of each of the chosen rows that its newest token ends."""
        columns = rows.ints[:, chosen]
        tokens = columns[Field.TOKEN]
        stopped = self.tokens.table[columns[Field.STOP_SET], tokens]
        done = stopped | (columns[Field.GENERATED] >= columns[Field.MAX_NEW])
        matches = self.strings.matches(rows, chosen) if self.strings.used else {}
        if matches:
            done |= np.isin(chosen, list(matches))
        reasons: dict[int, dict[str, Any]] = {}
        for index in np.flatnonzero(done).tolist():
            row = int(chosen[index])
            if stopped[index]:
                reasons[row] = {"type": "stop", "matched": int(tokens[index])}
            elif row in matches:
                reasons[row] = {"type": "stop", "matched": matches[row]}
            else:
                reasons[row] = {"type": "length", "length": rows.entries[row].sample.params.max_new_tokens}
        return reasons


class _SetTable:
    """Sets of tokens as rows of a `[sets, V]` table; row 0 is the empty set."""

    def __init__(self, vocab_size: int, empty: Hashable) -> None:
        self.table: NDArray[np.bool_] = np.zeros((1, vocab_size), np.bool_)
        self._sets: dict[Hashable, int] = {empty: 0}

    def bound(self, used: NDArray[np.int64]) -> None:
        """Once there are `MAX_SETS` sets, forgets those that are not in `used`, and renumbers `used` in
        place.
        """
        if len(self.table) < MAX_SETS:
            return
        kept = np.unique(np.append(used, 0))
        self.table = self.table[kept]
        self._sets = {key: int(kept.searchsorted(row)) for key, row in self._sets.items() if row in kept}
        used[:] = kept.searchsorted(used)

    def _add(self, key: Hashable, row: NDArray[np.bool_]) -> None:
        self._sets[key] = len(self.table)
        self.table = np.concatenate([self.table, row[None]])


class StopTokens(_SetTable):
    """Sets of stop tokens."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        super().__init__(vocab_size, frozenset())
        self._eos = eos_token_ids

    def index(self, params: SamplingParams) -> int:
        """Returns the row of the table for a request."""
        tokens = frozenset(() if params.ignore_eos else (*self._eos, *params.stop_token_ids))
        if tokens not in self._sets:
            row = np.zeros(self.table.shape[1], np.bool_)
            row[[token for token in tokens if token < len(row)]] = True
            self._add(tokens, row)
        return self._sets[tokens]


class StopStrings(_SetTable):
    """Stop strings. A table rules out tokens that cannot end a match, so that few rows have to be decoded."""

    def __init__(self, vocab_size: int, folder: str | Path) -> None:
        super().__init__(vocab_size, ())
        self._folder = Path(folder)
        self._tokenizer: Tokenizer | None = None
        self._texts: list[str] = []

    def check(self, params: SamplingParams) -> None:
        """Raises ValueError for stop strings without a tokenizer. Any thread may call it."""
        if params.stop and not (self._folder / "tokenizer.json").is_file():
            raise ValueError(
                f"stop strings need a tokenizer.json in {self._folder}; add it, or use stop_token_ids"
            )

    def index(self, params: SamplingParams) -> int:
        """Returns the row of the table for a request; true for tokens that may complete one of its
        strings.
        """
        if params.stop not in self._sets:
            texts = self._token_texts()
            row = np.fromiter((_may_end(text, params.stop) for text in texts), np.bool_, len(texts))
            self._add(params.stop, row)
        return self._sets[params.stop]

    @property
    def used(self) -> bool:
        """Whether any remembered request had stop strings."""
        return len(self._sets) > 1

    def matches(self, rows: Rows, chosen: NDArray[np.int64]) -> dict[int, str]:
        """Returns the stop string of each of the chosen rows whose newest token completes one.

        As in SGLang, min_new_tokens holds back stop tokens only. A minimum for stop strings would depend on
        those that came before it, which an engine does not know of a sample that it continues.
        """
        columns = rows.ints[:, chosen]
        candidates = self.table[columns[Field.STRING_SET], columns[Field.TOKEN]]
        matches = {}
        for row in chosen[candidates].tolist():
            text = self._match(rows.generated_tokens(row), rows.entries[row].sample.params.stop)
            if text is not None:
                matches[row] = text
        return matches

    def _match(self, tokens: NDArray[np.int32], stops: tuple[str, ...]) -> str | None:
        """Returns the stop string that `tokens` end with, or nearly end with; None if there is none."""
        assert self._tokenizer is not None
        # A token that decodes to text has at least one byte of it; 8 more allow for tokens that decode to
        # nothing.
        window = max(len(stop.encode()) for stop in stops) + 8
        text: str = self._tokenizer.decode(tokens[-window:].tolist(), skip_special_tokens=False)
        return next((stop for stop in stops if stop in text), None)

    def _token_texts(self) -> list[str]:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
            ids = range(self.table.shape[1])
            self._texts = self._tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=False)
        return self._texts


def _may_end(text: str, stops: tuple[str, ...]) -> bool:
    """Returns whether a match may end within a token's text.

    Decoded alone, a token may lack its leading space or be only part of a character (U+FFFD).
    """
    if "\ufffd" in text:
        return True
    spaced = " " + text
    return any(
        stop in spaced
        or any(spaced.startswith(stop[i:]) or text.startswith(stop[i:]) for i in range(len(stop)))
        for stop in stops
    )
