"""Finds rows of an evaluation whose questions are also among the rows for training.

    rows of the evaluation ─▶ index of their texts and sequences of words
    rows for training ──────▶ one at a time, looked up in the index ─▶ the nearest of each evaluated row

The index is of the evaluation alone, so that the rows for training may be as many as a disk holds.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlrun.plugins.types import Row

SEQUENCE = 8
"""Words of a sequence, as in Tülu 3 (Lambert et al., 2024, arXiv 2411.15124, section 3.2)."""
MIN_SHARE = 0.5
"""The share of an evaluated question above which it counts as known, of the same source."""
_FORM_SHARE = 0.05
"""Sequences of more than this share of the evaluated rows are the form of their questions."""
_MIN_FORM_ROWS = 3
_WORD = re.compile(r"\w+|[^\w\s]")

Words = tuple[str, ...]


@dataclass(frozen=True)
class Overlap:
    """An evaluated row, and the row for training that has the most of its question."""

    row: str
    """Id of the evaluated row."""
    training_row: str
    """Id of the row for training."""
    share: float
    """The share of the question's words that both have in sequences, without those that are only the form of
    the evaluation's questions; 1 for the same text."""
    is_same: bool
    """Whether the texts are the same but for case and white space."""
    text: str
    """The evaluated row's question."""


class QuestionIndex:
    """The questions of an evaluation, by their texts and by their sequences of words."""

    def __init__(self, rows: Iterable[Row], sequence: int = SEQUENCE) -> None:
        self._sequence = sequence
        self._rows = list(rows)
        self._same: defaultdict[Words, list[int]] = defaultdict(list)
        self._places: dict[int, list[tuple[int, int]]] = {}
        """By sequence (its hash): the number of each row that has it, and where it begins."""
        self._own: dict[int, set[int]] = {}
        """By row: the places of its words that are not the form of the questions."""
        self._best: dict[int, Overlap] = {}
        self._index()

    def __len__(self) -> int:
        return len(self._rows)

    def look_up(self, row: Row) -> None:
        """Compares a row for training with all questions."""
        words = words_of(row)
        for number in self._same.get(words, ()):
            self._keep(number, row, 1.0, is_same=True)
        shared: defaultdict[int, set[int]] = defaultdict(set)
        for key, _ in self._sequences(words):
            for number, start in self._places.get(key, ()):
                shared[number].update(self._own[number] & self._span(start))
        for number, places in shared.items():
            if len(places) > MIN_SHARE * len(self._own[number]):
                self._keep(number, row, len(places) / len(self._own[number]), is_same=False)

    def overlaps(self) -> list[Overlap]:
        """Returns the questions that rows for training have, in the order of the evaluation."""
        return [self._best[number] for number in sorted(self._best)]

    def _index(self) -> None:
        places: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, row in enumerate(self._rows):
            words = words_of(row)
            self._own[number] = set(range(len(words)))
            if words:
                self._same[words].append(number)
            for key, start in self._sequences(words):
                places[key].append((number, start))
        form = max(_FORM_SHARE * len(self._rows), _MIN_FORM_ROWS)
        for key, found in places.items():
            if len({number for number, _ in found}) <= form:
                self._places[key] = found
                continue
            for number, start in found:
                self._own[number] -= self._span(start)

    def _span(self, start: int) -> set[int]:
        """Returns the places of a sequence's words."""
        return set(range(start, start + self._sequence))

    def _sequences(self, words: Words) -> Iterator[tuple[int, int]]:
        """Yields the hash of each sequence of words, and where it begins."""
        for start in range(len(words) - self._sequence + 1):
            yield hash(words[start : start + self._sequence]), start

    def _keep(self, number: int, row: Row, share: float, *, is_same: bool) -> None:
        best = self._best.get(number)
        if best is None or (is_same, share) > (best.is_same, best.share):
            own = self._rows[number]
            self._best[number] = Overlap(own.id, row.id, share, is_same, " ".join(question_of(own).split()))


def question_of(row: Row) -> str:
    """Returns the text of a row's prompt without its system messages."""
    return row.text(without=("system", "developer"))


def words_of(row: Row) -> Words:
    """Returns the words and symbols of a row's question, in lower case, and what stands for its images."""
    return (*_WORD.findall(question_of(row).casefold()), *(image.digest for image in row.images))
