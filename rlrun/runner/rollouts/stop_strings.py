"""Stop strings that lie across two parts of a sample: an engine looks only through what it makes itself."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.generation import Sampling

Tokens = NDArray[np.int32]
Decode = Callable[[Sequence[Tokens]], Sequence[str]]
"""Texts of token sequences, special tokens included."""

_WITHOUT_TEXT = 8
"""So many tokens within a match may decode to nothing; any other has at least one byte of it."""


def end_across(tokens: Tokens, begun: int, sampling: Sampling, decode: Decode) -> int | None:
    """How many tokens there are up to the end of a stop string that began in the first `begun`.

    None where no stop string lies across.
    """
    if not sampling.stop or not 0 < begun < len(tokens):
        return None
    reach = max(len(stop.encode()) for stop in sampling.stop) + _WITHOUT_TEXT
    ends = range(max(begun + 1, sampling.min_new_tokens), min(len(tokens), begun + reach) + 1)
    texts = decode([tokens[max(0, end - reach) : end] for end in ends])
    for end, text in zip(ends, texts, strict=True):
        if any(stop in text for stop in sampling.stop):
            return end
    return None
