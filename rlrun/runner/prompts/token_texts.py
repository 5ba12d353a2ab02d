"""Compares the tokens of two tokenizers by the text that they stand for. Pure, but for the tokenizers.

    text      T   h   e   ·   c   a   t   .
    policy    [The       ][·cat      ][.  ]      positions  0 1 2
    teacher   [The       ][·  ][cat  ][.  ]      positions  0 1 2 3

Policy's 0, 1 and 2 are the teacher's 0, 1 and 3: there both have read the same text. The token that follows
is the same one at 0 and 2.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.prompts.tokenizer import Tokenizer

Tokens = NDArray[np.int32]
NO_TOKEN = -1
"""The number of a token that the other tokenizer does not have, and of a position without its like."""


def token_map(teacher: Tokenizer, policy: Tokenizer, size: int) -> Tokens:
    """Returns `[size]` the policy's token with the text of each of the teacher's; NO_TOKEN: it has none.

    No two have the same. Special tokens have no text: the token that ends the teacher's responses is the
    policy's that ends its own, and others are those of the same name. `size`: the teacher's vocabulary, with
    the tokens that pad it.
    """
    result = np.full(size, NO_TOKEN, np.int32)
    theirs, ours = (_by_text(one, special=True) for one in (teacher, policy))
    end, ends = teacher.eos_token_ids[0], policy.eos_token_ids
    same_name = ours.get(teacher.pieces([end])[0])
    mine = same_name if same_name in ends else ends[0]
    result[end] = mine
    for name, number in theirs.items():
        if number != end and ours.get(name, mine) != mine:
            result[number] = ours[name]
    texts = _by_text(policy, special=False)
    for text, number in _by_text(teacher, special=False).items():
        result[number] = texts.get(text, NO_TOKEN)
    return result


def _by_text(tokenizer: Tokenizer, *, special: bool) -> dict[bytes, int]:
    """Returns the special or the other tokens by their bytes. Of several with the same bytes, the last one:
    SentencePiece's tokens of single bytes come before those of characters.
    """
    pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
    chosen = ((piece, number) for number, piece in pieces if (number in tokenizer.special_ids) == special)
    return {piece: number for piece, number in chosen if piece}


def aligned(policy: Sequence[int], teacher: Sequence[int]) -> Tokens:
    """Returns the teacher's position that has read the same text as each of the policy's; NO_TOKEN: none.

    Both arguments are the widths of a response's tokens, in bytes and at least 1, from its beginning.
    """
    starts = np.cumsum([0, *teacher])[:-1]
    positions = {start: position for position, start in enumerate(starts.tolist())}
    own = np.cumsum([0, *policy])[:-1].tolist()
    return np.array([positions.get(start, NO_TOKEN) for start in own], np.int32)


def text_runs(text: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yields the parts of a byte string in order, and whether each is UTF-8. Parts that are not have at most
    a part of one character.
    """
    while text:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            if error.start:
                yield text[: error.start], True
            yield text[error.start : error.end], False
            text = text[error.end :]
        else:
            yield text, True
            return
