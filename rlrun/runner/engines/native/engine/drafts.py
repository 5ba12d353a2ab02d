"""Guesses the next tokens of running samples from texts that began alike; no model is needed.

    last 3 tokens of a sample ─▶ where they occurred last: in its prompt, in its own answer, or in another
                                 answer to the prompt ─▶ the tokens that followed there are the draft

Answers to one prompt are indexed together, which fits GRPO's groups. How often a guess was right is counted
for each length of the match, also for guesses that were never run as drafts: the tokens that the model draws
show it. So a draft's probability is known before it costs anything, and a draft is as long as pays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.requests import SampleInProgress

CONTEXT = 3
"""Tokens that must agree before what followed them is a guess."""
MAX_MATCH_LENGTH = 16
"""Matches of at least this many tokens count as equally reliable."""
MEMORY_COUNT = 128
"""Guesses of a length of the match that are remembered; twice as many are halved."""
FIRST_GUESSES = 2
"""As many guesses, one right in five, are assumed of each length before any was seen."""
MAX_TOKENS = 1 << 19
"""Tokens that are indexed at a time, 200 bytes each; the oldest prompt is forgotten first."""
_TOKEN_BITS = 21
_CONTEXT_MASK = (1 << (CONTEXT * _TOKEN_BITS)) - 1


@dataclass(slots=True, eq=False)
class PromptTexts:
    """A prompt and the answers to it, with an index of what followed each context."""

    prompt: NDArray[np.int32]
    """`[P]`; later turns of a conversation and continued samples have prompts that begin with it."""
    places: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    """For each context: the text where it occurred last, and the index of the token behind it."""
    end: int = 0
    """The context at the prompt's end, from which every answer begins."""
    size: int = 0
    """Number of indexed tokens."""

    def append(self, text: list[int], context: int, token: int) -> int:
        """Appends a token to one of the texts; returns the context behind it."""
        self.places[context] = text, len(text)
        text.append(token)
        self.size += 1
        return ((context << _TOKEN_BITS) | token) & _CONTEXT_MASK


@dataclass(slots=True, eq=False)
class History:
    """The tokens of a running sample, and the text that it has followed so far."""

    texts: PromptTexts
    text: list[int] = field(default_factory=list)
    """The sample's tokens behind the prompt of `texts`."""
    context: int = 0
    """The last tokens as one number, which `PromptTexts` is indexed by."""
    earlier: int = 0
    """How many of the tokens were there before the sample had its row."""
    followed: list[int] | None = None
    """A text that has continued like the sample; None if there is none."""
    position: int = 0
    """Index of the next token in it."""
    matched: int = 0
    """Number of tokens in which both agree, at most `MAX_MATCH_LENGTH`."""


class Drafts:
    """The texts of all prompts that an engine works on, and how reliable guesses have been."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all texts and counts, so that later drafts do not depend on earlier requests."""
        self._texts: dict[bytes, PromptTexts] = {}
        self._right = [0.2 * FIRST_GUESSES] * (MAX_MATCH_LENGTH + 1)
        self._guesses = [float(FIRST_GUESSES)] * (MAX_MATCH_LENGTH + 1)

    def begin(self, sample: SampleInProgress) -> History:
        """Returns the history of a sample before its row has tokens."""
        texts = self._texts_of(sample.prompt)
        history = History(texts, context=texts.end)
        self.extend(history, np.concatenate([sample.prompt[len(texts.prompt) :], sample.tokens]).tolist())
        history.earlier = len(history.text)
        return history

    def extend(self, history: History, tokens: Sequence[int]) -> None:
        """Appends tokens that a sample has drawn, and counts whether they were guessed."""
        texts, text = history.texts, history.text
        for token in tokens:
            if history.followed is not None:
                self._check_guess(history, history.followed, token)
            history.context = texts.append(text, history.context, token)
            if history.followed is not None and history.position == len(history.followed):
                history.followed = None  # its sample has come no further yet
            if history.followed is None:
                self._find(history)

    def guess(self, history: History, count: int) -> list[int]:
        """Returns up to `count` tokens that may come next."""
        if history.followed is None:
            self._find(history)
        if history.followed is None:
            return []
        tokens = history.followed[history.position : history.position + count]
        if history.followed is history.text:  # the sample repeats itself, and may do so again
            tokens = (tokens * count)[:count]
        return tokens

    def reliability(self, matched: int) -> float:
        """Returns the share of right guesses after matches of this many tokens."""
        length = min(matched, MAX_MATCH_LENGTH)
        return self._right[length] / self._guesses[length]

    def _texts_of(self, prompt: NDArray[np.int32]) -> PromptTexts:
        """Returns the texts of a prompt, or of one that it begins with; new ones if there are none."""
        known = self._texts.get(prompt.tobytes())
        if known is None:
            known = next(
                (texts for texts in self._texts.values() if _begins_with(prompt, texts.prompt)), None
            )
        return known or self._new_texts(prompt)

    def _new_texts(self, prompt: NDArray[np.int32]) -> PromptTexts:
        while self._texts and sum(texts.size for texts in self._texts.values()) > MAX_TOKENS:
            del self._texts[next(iter(self._texts))]
        texts, text = PromptTexts(prompt), list[int]()
        for token in prompt.tolist():
            texts.end = texts.append(text, texts.end, token)
        self._texts[prompt.tobytes()] = texts
        return texts

    def _check_guess(self, history: History, followed: list[int], token: int) -> None:
        """Counts whether the followed text continues with the token; if not, it is no longer followed."""
        length, right = history.matched, followed[history.position] == token
        self._right[length] += right
        self._guesses[length] += 1
        if self._guesses[length] > 2 * MEMORY_COUNT:
            self._right[length] /= 2
            self._guesses[length] /= 2
        history.position += 1
        history.matched = min(length + 1, MAX_MATCH_LENGTH)
        if not right:
            history.followed = None

    def _find(self, history: History) -> None:
        """Follows the text where the sample's context occurred last."""
        place = history.texts.places.get(history.context)
        if place is None:
            return
        history.followed, history.position = place
        history.matched = _matched(history.text, *place)


def _matched(own: list[int], other: list[int], position: int) -> int:
    """Returns in how many tokens before its end a text agrees with another one before a position; contexts
    have agreed already.
    """
    length, most = CONTEXT, min(MAX_MATCH_LENGTH, len(own), position)
    while length < most and own[-1 - length] == other[position - 1 - length]:
        length += 1
    return length


def _begins_with(prompt: NDArray[np.int32], start: NDArray[np.int32]) -> bool:
    return len(start) <= len(prompt) and np.array_equal(prompt[: len(start)], start)
