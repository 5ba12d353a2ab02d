"""Text to tokens and back, with the model's own tokenizer and chat template."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Message, Row
from rlrun.specs.hub import first_line

Tokens = NDArray[np.int32]
Mask = NDArray[np.float32]
Tools = Sequence[Mapping[str, Any]]

_ANSWER = "An-answer-that-nobody-gives."
"""Stands for what the policy answered, where the template is asked what comes after it."""
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model")
"""One of these is there where a tokenizer is."""
_GENERATION = re.compile(r"\{%-?\s*generation\b")
"""Where a template marks what the assistant generates."""


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
        self._template_args = dict(template_args or {})
        if not any((self.folder / name).is_file() for name in _FILES):
            raise ValueError(
                f"{self.folder} has no tokenizer: none of {', '.join(_FILES)}; copy it there too"
            )
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

    def encode_prompt(
        self, row: Row, apply_chat_template: bool, tools: Tools = (), most: int | None = None
    ) -> Tokens:
        """The tokens of a prompt, up to where the response begins; ValueError says what is wrong with it.

        `tools` are for the chat template; a row's own, under `tools` in its metadata, outrank them. Of a text
        that must have more than `most` tokens, only as much is looked at as shows it.
        """
        text = _plain(row) if not apply_chat_template else self._rendered(row, messages_of(row), True, tools)
        with _naming(row):
            start = text if most is None else text[: (most + 1) * self._longest]
            tokens = self._encode(start, special_tokens=not apply_chat_template)
            if len(start) == len(text) or len(tokens) > (most or 0):
                return tokens
            return self._encode(text, special_tokens=not apply_chat_template)  # it drops much of a text

    def encode_chat(self, row: Row, messages: Sequence[Any], *, generation_prompt: bool) -> Tokens:
        """A row's messages by the template; `generation_prompt`: up to where an answer begins."""
        text = self._rendered(row, messages, generation_prompt)
        with _naming(row):
            return self._encode(text)

    def _rendered(self, row: Row, messages: Sequence[Any], generation_prompt: bool, tools: Tools = ()) -> str:
        with _naming(row):
            return self._template(messages, _tools(row, tools), generation_prompt)

    def encode_marked(self, row: Row, messages: Sequence[Any]) -> tuple[Tokens, Mask] | None:
        """The same, and 1 on tokens within the template's generation markers; None where it has none."""
        if not _GENERATION.search(str(self._tokenizer.chat_template or "")):
            return None
        with _naming(row):
            found = self._apply_template(
                messages, _tools(row), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
        return np.array(found["input_ids"], np.int32), np.array(found["assistant_masks"], np.float32)

    def decode(self, tokens: Tokens) -> str:
        """The text of a response, without special tokens."""
        return self.decode_batch([tokens])[0]

    def encode(self, text: str) -> Tokens:
        """Tokens of a text; special tokens that it names are special, and none are added."""
        return self._encode(text)

    def plain(self, text: str) -> str:
        """A text without the names of special tokens (rlrun.plugins.session.Chat)."""
        return self._special.sub("", text) if self._special is not None else text

    def render(self, messages: Sequence[Message], tools: Tools = ()) -> Tokens:
        """A conversation up to where the policy's answer begins (rlrun.plugins.session.Chat)."""
        return self._encode(self._template(messages, tools, generation_prompt=True))

    def follow_up(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[Tokens, Tokens]:
        """What stands between an answer and the next (rlrun.plugins.session.Chat).

        The template renders a conversation with an answer of a known text; what comes after that text begins
        with the token that ends the answer, a special one, so that tokens cannot merge across it.
        """
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        text = self._template([*before, *messages], tools, generation_prompt=True)
        tail = self._encode(text.partition(_ANSWER)[2].lstrip())
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
        declared = _declared_end_tokens(self.folder)
        own = self._tokenizer.eos_token_id
        tokens = tuple(dict.fromkeys([*([] if own is None else [own]), *declared]))
        if not tokens:
            raise ValueError(
                f"{self.folder} names no end-of-sequence token; set eos_token_id in generation_config.json"
            )
        return tokens

    def _encode(self, text: str, special_tokens: bool = False) -> Tokens:
        text.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
        tokens = self._tokenizer.encode(text, add_special_tokens=special_tokens, verbose=False)
        return np.array(tokens, dtype=np.int32)

    def _template(self, messages: Sequence[Any], tools: Tools, generation_prompt: bool) -> str:
        if self._tokenizer.chat_template is None:
            raise ValueError(
                f"the tokenizer of {self.folder} has no chat template; set data.apply_chat_template = false"
            )
        return str(
            self._apply_template(messages, tools, add_generation_prompt=generation_prompt, tokenize=False)
        )

    def _apply_template(self, messages: Sequence[Any], tools: Tools, **options: bool) -> Any:
        try:
            return self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, **options, **self._template_args
            )
        except Exception as error:  # the boundary to the template, a program that came with the model
            raise ValueError(f"the chat template refuses it: {error}") from error


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


def _declared_end_tokens(folder: Path) -> list[int]:
    """End tokens by generation_config.json, or else by config.json."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        found = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return found if isinstance(found, list) else [found]
    return []


def _plain(row: Row) -> str:
    if not isinstance(row.prompt, str):
        raise ValueError(
            f"row {row.id}: the prompt is a list of messages; set data.apply_chat_template = true"
        )
    return row.prompt


def messages_of(row: Row) -> Sequence[Any]:
    """The prompt as a conversation."""
    return [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt
