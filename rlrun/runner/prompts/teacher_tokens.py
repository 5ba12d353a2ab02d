"""Lets a teacher with a tokenizer of its own read the policy's samples (`teacher.tokenizer = "own"`).

    row, response ─▶ text ─▶ teacher's tokens ─▶ its distributions ─▶ the policy's positions and tokens

The teacher reads the row's prompt by its own chat template, and the response's text in its own tokens. It
teaches at the positions where both have read the same text so far. There its most probable tokens are the
policy's tokens of the same text, and those that the policy does not have count among all others.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Row, Sample
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.contracts.teacher_reading import Reading
from rlrun.runner.prompts.tokenizer import Tokenizer
from rlrun.specs.needs import LEAST_REST

logger = logging.getLogger(__name__)
Tokens = NDArray[np.int32]
Array = NDArray[np.float32]
_PROBE = "Two words, 12 numbers: é, 猫\n\n  and an end."
"""A text that a tokenizer must give back byte for byte."""
_NO_TOKEN = -1
"""The number of a token that the other tokenizer does not have, and of a position without its like."""


@dataclass(frozen=True, slots=True)
class TeacherTokens:
    """The tokens of a teacher, and what they are to the policy."""

    policy: Tokenizer
    teacher: Tokenizer
    apply_chat_template: bool
    max_length: int
    """Longest sequence of the teacher, in tokens."""
    size: int
    """The teacher's vocabulary, with the tokens that pad it."""
    numbers: Tokens = field(init=False)
    """`[size]` the policy's token with the text of each of the teacher's; -1: it has none."""
    _special: dict[int, int] = field(init=False)
    """The teacher's token for each of the policy's special ones."""
    _bytes: dict[bytes, int] = field(init=False)
    """The teacher's tokens of single bytes."""
    _unwritten: set[str] = field(default_factory=set)
    """The rows of which a prompt could not be written, each of which is reported once."""

    def __post_init__(self) -> None:
        """Raises ValueError for a tokenizer that changes texts, so that positions cannot be compared."""
        for tokenizer in (self.teacher, self.policy):
            if b"".join(tokenizer.pieces(tokenizer.encode(_PROBE).tolist())) != _PROBE.encode():
                raise ValueError(
                    f'teacher.tokenizer = "own": the tokenizer of {tokenizer.folder} changes texts (by a '
                    "blank before them, or by normalising them), so that its tokens cannot be compared with "
                    "others by what they stand for: choose another teacher"
                )
        numbers = token_map(self.teacher, self.policy, self.size)
        pieces = self.teacher.pieces(range(self.teacher.vocab_size))
        end = self.teacher.eos_token_ids[0]
        special = {int(numbers[token]): token for token in self.teacher.special_ids if numbers[token] >= 0}
        object.__setattr__(self, "numbers", numbers)
        object.__setattr__(self, "_special", dict.fromkeys(self.policy.eos_token_ids, end) | special)
        single = {piece: token for token, piece in enumerate(pieces) if len(piece) == 1}
        object.__setattr__(self, "_bytes", single)

    def __call__(self, groups: Sequence[Group], sequences: Sequence[TrainSequence]) -> list[Reading]:
        """Returns what the teacher reads of all samples, in order.

        Raises ValueError for samples that are more than one response to the row's prompt.
        """
        prompts = [self._prompt(group.prompt.row) for group in groups]
        samples = [
            (group, sample, prompt)
            for group, prompt in zip(groups, prompts, strict=True)
            for sample in group.samples
        ]
        return [
            self._read(group, sample, sequence, prompt)
            for (group, sample, prompt), sequence in zip(samples, sequences, strict=True)
        ]

    def _read(self, group: Group, sample: Sample, sequence: TrainSequence, prompt: Tokens | None) -> Reading:
        if sequence.images or not sample.made.all():
            raise ValueError(
                f'sample {sample.id}: teacher.tokenizer = "own" is for single responses to texts, and the '
                "sample has images or tokens that the policy did not generate"
            )
        if not np.array_equal(sample.prompt.tokens, group.prompt.tokens):
            raise ValueError(
                f'sample {sample.id}: with teacher.tokenizer = "own" the teacher reads the row\'s prompt, '
                "and the rollout began this sample with another one"
            )
        response = self.response(sample.tokens)
        if prompt is None or not len(prompt) or len(prompt) + len(response) > self.max_length:
            prompt, response = np.zeros(1, np.int32), np.zeros(0, np.int32)
        positions = aligned(self._widths(self.policy, sample.tokens), self._widths(self.teacher, response))
        is_aligned = positions != _NO_TOKEN
        is_same = np.zeros(len(positions), np.bool_)
        next_tokens = self.numbers[response[positions[is_aligned]]]
        is_same[is_aligned] = next_tokens == sample.tokens[is_aligned]
        return Reading(_sequence(prompt, response, sequence.execution), positions, is_same)

    def _prompt(self, row: Row) -> Tokens | None:
        """Returns the tokens of a row's prompt; None if the teacher's chat template cannot write it."""
        try:
            return self.teacher.encode_prompt(row, self.apply_chat_template)
        except ValueError as error:
            if row.id not in self._unwritten:
                self._unwritten.add(row.id)
                logger.warning("samples of a row are not distilled: the teacher's prompt: %s", error)
            return None

    def response(self, tokens: Tokens) -> Tokens:
        """Returns the teacher's tokens of a response, up to what it has no tokens for.

        Bytes that are no text, such as a part of a character at the end of a truncated response, become the
        tokens of the single bytes.
        """
        result: list[int] = []
        text = b""
        for token, piece in zip(tokens.tolist(), self.policy.pieces(tokens.tolist()), strict=True):
            if piece and token not in self.policy.special_ids:
                text += piece
                continue
            read, is_whole = self._encoded(text)
            result += read
            if not is_whole or token not in self._special:
                return np.array(result, np.int32)
            result.append(self._special[token])
            text = b""
        return np.array([*result, *self._encoded(text)[0]], np.int32)

    def _encoded(self, text: bytes) -> tuple[list[int], bool]:
        """Returns the tokens of bytes, and whether they are all; the names of special tokens end them."""
        result: list[int] = []
        for run, is_text in text_runs(text):
            if is_text:
                tokens = self.teacher.encode(run.decode()).tolist()
            else:
                tokens = [self._bytes.get(run[at : at + 1], _NO_TOKEN) for at in range(len(run))]
                tokens = tokens[: tokens.index(_NO_TOKEN)] if _NO_TOKEN in tokens else tokens
            at = 0
            for token, piece in zip(tokens, self.teacher.pieces(tokens), strict=True):
                if token in self.teacher.special_ids or not piece or not run.startswith(piece, at):
                    return result, False
                result.append(token)
                at += len(piece)
            if at < len(run):
                return result, False
        return result, True

    def _widths(self, tokenizer: Tokenizer, tokens: Tokens) -> list[int]:
        """Returns the number of bytes of each token, and 1 for a special one, which is no text."""
        numbers = tokens.tolist()
        pieces = zip(numbers, tokenizer.pieces(numbers), strict=True)
        return [1 if number in tokenizer.special_ids else max(len(piece), 1) for number, piece in pieces]

    def outcomes(self, reading: Reading, ids: Tokens, log_probs: Array) -> tuple[Tokens, Array]:
        """Returns the teacher's most probable tokens `[S, k]` and their log-probs `[S, k + 1]` as those of
        the policy: `[R, k]`, and `[R, k + 1]`.

        A token that the policy does not have is -1, and its probability is among all other tokens', the last
        column. At positions that are not compared, all others together are certain.
        """
        numbers = self.numbers[ids]
        unknown, of_ids, rest = numbers == _NO_TOKEN, log_probs[:, :-1], log_probs[:, -1]
        added = np.where(unknown, of_ids, -np.inf).astype(np.float64)
        with_unknown = np.logaddexp.reduce(np.concatenate([added, rest[:, None]], 1), axis=1)
        of_others = np.where(unknown.any(1), np.minimum(with_unknown, 0.0), rest)
        of_known = np.where(unknown, LEAST_REST, of_ids)
        mapped = np.concatenate([of_known, of_others[:, None]], 1).astype(np.float32)
        is_read = reading.positions != _NO_TOKEN
        all_ids = np.full((len(is_read), ids.shape[1]), _NO_TOKEN, np.int32)
        all_log_probs = np.full((len(is_read), ids.shape[1] + 1), LEAST_REST, np.float32)
        all_log_probs[:, -1] = 0.0
        all_ids[is_read] = numbers[reading.positions[is_read]]
        all_log_probs[is_read] = mapped[reading.positions[is_read]]
        return all_ids, all_log_probs


def read_teacher_tokens(
    policy: Tokenizer, folder: Path, config: dict[str, int], *, apply_chat_template: bool, max_length: int
) -> TeacherTokens:
    """Returns the tokens of the teacher in a folder, with its config.json. ValueError if they cannot be used.

    `max_length`: the longest sequence that the trainer takes.
    """
    limit = min(max_length, config["max_position_embeddings"])
    teacher = Tokenizer(folder, policy.template_args)
    size = max(config["vocab_size"], teacher.vocab_size)
    return TeacherTokens(policy, teacher, apply_chat_template, limit, size)


def _sequence(prompt: Tokens, response: Tokens, execution: str) -> TrainSequence:
    zeros = np.zeros(len(response), np.float32)
    tokens = np.concatenate([prompt, response])
    return TrainSequence(tokens, len(prompt), zeros + 1, zeros, zeros, execution)


# Compares the tokens of two tokenizers by the text that they stand for. Pure, but for the tokenizers.
#
#     text      T   h   e   ·   c   a   t   .
#     policy    [The       ][·cat      ][.  ]      positions  0 1 2
#     teacher   [The       ][·  ][cat  ][.  ]      positions  0 1 2 3
#
# Policy's 0, 1 and 2 are the teacher's 0, 1 and 3: there both have read the same text. The token that follows
# is the same one at 0 and 2.
def token_map(teacher: Tokenizer, policy: Tokenizer, size: int) -> Tokens:
    """Returns `[size]` the policy's token with the text of each of the teacher's; NO_TOKEN: it has none.

    No two have the same. Special tokens have no text: the token that ends the teacher's responses is the
    policy's that ends its own, and others are those of the same name. `size`: the teacher's vocabulary, with
    the tokens that pad it.
    """
    result = np.full(size, _NO_TOKEN, np.int32)
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
        result[number] = texts.get(text, _NO_TOKEN)
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
    return np.array([positions.get(start, _NO_TOKEN) for start in own], np.int32)


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
