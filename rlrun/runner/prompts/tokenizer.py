"""Text to tokens and back, with the model's own tokenizer and chat template."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.hub import first_line
from rlrun.plugins.types import Message, Row
from rlrun.runner.prompts.control_tokens import Guard
from rlrun.runner.prompts.end_tokens import declared_end_tokens
from rlrun.runner.prompts.template import ChatTemplate, Rendered, Tools
from rlrun.runner.prompts.template_files import template_problem

Tokens = NDArray[np.int32]
Mask = NDArray[np.float32]

_ANSWER = "An-answer-that-nobody-gives."
"""Stands for what the policy answered, where the template is asked what comes after it."""


class Tokenizer:
    """The tokenizer of a Hugging Face model folder."""

    def __init__(self, folder: Path | str, template_args: Mapping[str, Any] | None = None) -> None:
        """`template_args`: variables of the chat template beside its usual ones.

        ValueError when the folder has no tokenizer, its config contradicts itself, or nothing in it names an
        end-of-sequence token.
        """
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoTokenizer  # takes seconds, and brings torch with it

        self.folder = Path(folder)
        if problem := template_problem(self.folder, template=False):
            raise ValueError(problem)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        except StrictDataclassError as error:
            reason = str(error.__cause__ or error)
            raise ValueError(f"{self.folder}/config.json contradicts itself: {reason}") from error
        except Exception as error:  # the boundary to files of others, which fail to load in many ways
            raise ValueError(
                f"{self.folder} has no tokenizer that can be loaded: {first_line(error)}"
            ) from error
        self.eos_token_ids = self._end_tokens()
        """Tokens that end a response, the tokenizer's own first."""
        special = [str(one) for one in self._tokenizer.added_tokens_decoder.values() if one.special]
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        self._longest = max(map(len, self._tokenizer.get_vocab()))
        guard = Guard(self._tokenizer, self.eos_token_ids)
        self._template = ChatTemplate(self._tokenizer, guard, template_args or {})

    def encode_prompt(
        self, row: Row, apply_chat_template: bool, tools: Tools = (), most: int | None = None
    ) -> Tokens:
        """The tokens of a prompt, up to where the response begins; ValueError says what is wrong with it.

        `tools` are for the chat template; a row's own, under `tools` in its metadata, outrank them. Of a text
        that must have more than `most` tokens, only as much is looked at as shows it.
        """
        if apply_chat_template:
            rendered = self._rendered(row, messages_of(row), tools)
        else:
            rendered = Rendered(_plain(row))
        text = rendered.text
        with _naming(row):
            start = text if most is None else text[: (most + 1) * self._longest]
            tokens = self._encode(replace(rendered, text=start), special_tokens=not apply_chat_template)
            if len(start) == len(text) or len(tokens) > (most or 0):
                return tokens
            return self._encode(rendered, special_tokens=not apply_chat_template)  # it drops much of a text

    def encode_chat(self, row: Row, messages: Sequence[Any], *, generation_prompt: bool) -> Tokens:
        """A row's messages by the template; `generation_prompt`: up to where an answer begins."""
        rendered = self._rendered(row, messages, generation_prompt=generation_prompt)
        with _naming(row):
            return self._encode(rendered)

    def encode_marked(self, row: Row, messages: Sequence[Any]) -> tuple[Tokens, Mask] | None:
        """The same, and 1 on tokens within the template's generation markers; None where it has none."""
        if not self._template.marks_answers:
            return None
        rendered = self._rendered(row, messages, generation_prompt=False, answers=True)
        with _naming(row):
            tokens, places = self._encode_with_places(rendered)
        mask = np.zeros(len(tokens), np.float32)
        for begin, end in rendered.answers:
            mask[(places[:, 0] < end) & (places[:, 1] > begin)] = 1
        return tokens, mask

    def _rendered(
        self,
        row: Row,
        messages: Sequence[Any],
        tools: Tools = (),
        *,
        generation_prompt: bool = True,
        answers: bool = False,
    ) -> Rendered:
        with _naming(row):
            self._require_template()
            return self._template.render(
                messages, _tools(row, tools), generation_prompt=generation_prompt, answers=answers
            )

    def decode(self, tokens: Tokens) -> str:
        """The text of a response, without special tokens."""
        return self.decode_batch([tokens])[0]

    def encode(self, text: str) -> Tokens:
        """Tokens of a text; special tokens that it names are special, and none are added."""
        return self._encode(Rendered(text))

    def plain(self, text: str) -> str:
        """A text without the names of special tokens (rlrun.plugins.session.Chat)."""
        if self._special is None:
            return text
        start = 0
        while found := self._special.search(text, start):
            # What is left on both sides may be a name in its turn.
            text = text[: found.start()] + text[found.end() :]
            start = max(0, found.start() - self._longest)
        return text

    def render(self, messages: Sequence[Message], tools: Tools = ()) -> Tokens:
        """A conversation up to where the policy's answer begins (rlrun.plugins.session.Chat)."""
        self._require_template()
        return self._encode(self._template.render(messages, tools, generation_prompt=True))

    def follow_up(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[Tokens, Tokens]:
        """What stands between an answer and the next (rlrun.plugins.session.Chat).

        The template renders a conversation with an answer of a known text; what comes after that text begins
        with the token that ends the answer, a special one, so that tokens cannot merge across it.
        """
        self._require_template()
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        rendered = self._template.render([*before, *messages], tools, generation_prompt=True)
        tail = self._encode(rendered.after(_ANSWER))
        if not len(tail) or tail[0] not in self.eos_token_ids:
            raise ValueError(
                f"the chat template of {self.folder} ends an answer with "
                f"{self._tokenizer.decode(tail[:1])!r}, which is no end-of-sequence token; add it to "
                "eos_token_id in generation_config.json"
            )
        return tail[:1], tail[1:]

    def decode_batch(self, batch: Sequence[Tokens], *, special: bool = False) -> list[str]:
        """The text of each response; `special`: with special tokens."""
        texts: list[str] = self._tokenizer.batch_decode(
            [tokens.tolist() for tokens in batch],
            skip_special_tokens=not special,
            clean_up_tokenization_spaces=False,
        )
        return texts

    def _end_tokens(self) -> tuple[int, ...]:
        declared = declared_end_tokens(self.folder)
        own = self._tokenizer.eos_token_id
        tokens = tuple(dict.fromkeys([*([] if own is None else [own]), *declared]))
        if not tokens:
            raise ValueError(
                f"{self.folder} names no end-of-sequence token; set eos_token_id in generation_config.json"
            )
        return tokens

    def _encode(self, rendered: Rendered, special_tokens: bool = False) -> Tokens:
        rendered.text.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
        tokens: list[int] = []
        for _, piece in rendered.pieces():
            tokens += self._tokenizer.encode(piece, add_special_tokens=special_tokens, verbose=False)
        return np.array(tokens, dtype=np.int32)

    def _encode_with_places(self, rendered: Rendered) -> tuple[Tokens, NDArray[np.int64]]:
        """Tokens, and for each the characters of the text that it stands for: `[tokens, 2]`."""
        rendered.text.encode()
        tokens, places = [], []
        for start, piece in rendered.pieces():
            encoded = self._tokenizer(
                piece, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            tokens += encoded["input_ids"]
            places += [(start + begin, start + end) for begin, end in encoded["offset_mapping"]]
        return np.array(tokens, np.int32), np.array(places, np.int64).reshape(-1, 2)

    def _require_template(self) -> None:
        if self._tokenizer.chat_template is None:
            raise ValueError(
                f"the tokenizer of {self.folder} has no chat template; set data.apply_chat_template = false"
            )


@contextmanager
def _naming(row: Row) -> Iterator[None]:
    """Errors say which row it was."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"row {row.id}: {error}") from error


def _tools(row: Row, others: Tools = ()) -> Tools:
    """A row's own tools outrank others."""
    own: Tools = row.metadata.get("tools") or others
    return own


def _plain(row: Row) -> str:
    if not isinstance(row.prompt, str):
        raise ValueError(
            f"row {row.id}: the prompt is a list of messages; set data.apply_chat_template = true"
        )
    return row.prompt


def messages_of(row: Row) -> Sequence[Any]:
    """The prompt as a conversation."""
    return [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt
