"""What ends a sample: tables over the vocabulary, so that a step looks up all its rows at once."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rlrun.runner.engines.native.engine.requests import SamplingParams
from rlrun.runner.engines.native.engine.rows import Field, Rows

MAX_SETS = 1024
"""Different sets that are remembered; those of running samples always are. Each takes a byte for every token
of the vocabulary, and an agent may ask for a new one with every request."""


class Stops:
    """Decides which rows are done."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...], folder: str | Path) -> None:
        """`folder`: of the model, with a tokenizer where stop strings are used."""
        self.tokens = StopTokens(vocab_size, eos_token_ids)
        self.strings = StopStrings(vocab_size, folder)

    def sets(self, params: SamplingParams, rows: Rows) -> tuple[int, int]:
        """What a row keeps of its request: rows of the two tables, which forget what no row uses any more."""
        self.tokens.bound(rows.ints[Field.STOP_SET])
        self.strings.bound(rows.ints[Field.STRING_SET])
        return self.tokens.index(params), self.strings.index(params)

    def ended(self, rows: Rows, first: int) -> dict[int, dict[str, Any]]:
        """Rows from `first` on that their newest token ends, with SGLang's `finish_reason`."""
        columns = rows.ints[:, first : rows.count]
        tokens = columns[Field.TOKEN]
        stopped = self.tokens.table[columns[Field.STOP_SET], tokens]
        done = stopped | (columns[Field.GENERATED] >= columns[Field.MAX_NEW])
        matches = self.strings.matches(rows, first) if self.strings.used else {}
        for row in matches:
            done[row - first] = True
        if not done.any():
            return {}
        reasons: dict[int, dict[str, Any]] = {}
        for index in np.flatnonzero(done).tolist():
            row = first + index
            if stopped[index]:
                reasons[row] = {"type": "stop", "matched": int(tokens[index])}
            elif row in matches:
                reasons[row] = {"type": "stop", "matched": matches[row]}
            else:
                reasons[row] = {"type": "length", "length": rows.entries[row].job.params.max_new_tokens}
        return reasons


class _SetTable:
    """Sets that requests ask for as rows of a `[sets, V]` table; row 0 is the empty set."""

    def __init__(self, vocab_size: int, empty: Hashable) -> None:
        self.table: NDArray[np.bool_] = np.zeros((1, vocab_size), np.bool_)
        self._sets: dict[Hashable, int] = {empty: 0}

    def bound(self, used: NDArray[np.int64]) -> None:
        """Forget sets beyond `MAX_SETS` that are not `used`, and number those anew in place."""
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
        """The row of the table for a request."""
        tokens = frozenset(() if params.ignore_eos else (*self._eos, *params.stop_token_ids))
        if tokens not in self._sets:
            row = np.zeros(self.table.shape[1], np.bool_)
            row[[token for token in tokens if token < len(row)]] = True
            self._add(tokens, row)
        return self._sets[tokens]


class StopStrings(_SetTable):
    """Stop strings. A token that cannot be the last of a match is ruled out by a table, without decoding."""

    def __init__(self, vocab_size: int, folder: str | Path) -> None:
        super().__init__(vocab_size, ())
        self._folder = Path(folder)
        self._tokenizer: Tokenizer | None = None
        self._texts: list[str] = []

    def check(self, params: SamplingParams) -> None:
        """ValueError when stop strings are asked for and there is no tokenizer. Any thread may call it."""
        if params.stop and not (self._folder / "tokenizer.json").is_file():
            raise ValueError(
                f"stop strings need a tokenizer.json in {self._folder}; stop_token_ids work without"
            )

    def index(self, params: SamplingParams) -> int:
        """The row of the table for a request: true for tokens that may complete one of its strings."""
        if params.stop not in self._sets:
            texts = self._token_texts()
            row = np.fromiter((_may_end(text, params.stop) for text in texts), np.bool_, len(texts))
            self._add(params.stop, row)
        return self._sets[params.stop]

    @property
    def used(self) -> bool:
        """Some request had stop strings, of those that are remembered."""
        return len(self._sets) > 1

    def matches(self, rows: Rows, first: int) -> dict[int, str]:
        """Rows from `first` on whose newest token completes a stop string, and which."""
        columns = rows.ints[:, first : rows.count]
        candidates = self.table[columns[Field.STRING_SET], columns[Field.TOKEN]]
        long_enough = columns[Field.GENERATED] >= columns[Field.MIN_NEW]
        found = {}
        for row in (np.flatnonzero(candidates & long_enough) + first).tolist():
            text = self._match(rows.made(row), rows.entries[row].job.params.stop)
            if text is not None:
                found[row] = text
        return found

    def _match(self, tokens: NDArray[np.int32], stops: tuple[str, ...]) -> str | None:
        """The stop string that stands at the end of `tokens`, or near it."""
        assert self._tokenizer is not None
        # Every token that decodes to something has at least one byte of it; a few more for those that do not.
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
    """Whether a match may end inside `text`, which may lack a leading space or be part of a character."""
    if "\ufffd" in text:
        return True
    spaced = " " + text
    return any(
        stop in spaced
        or any(spaced.startswith(stop[i:]) or text.startswith(stop[i:]) for i in range(len(stop)))
        for stop in stops
    )
