"""Converts text to tokens and back, with the model's tokenizer and chat template.

Loading the tokenizer is the only place where code that comes with a model may run.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.error_text import first_line
from rlrun.plugins.images import Image, PlacedImage
from rlrun.plugins.types import Message, Row
from rlrun.runner.host.remote_code import CodeFile, check_code
from rlrun.runner.prompts.control_tokens import Guard
from rlrun.runner.prompts.end_tokens import declared_end_tokens
from rlrun.runner.prompts.image_processor import ModelImages
from rlrun.runner.prompts.template import (
    ChatTemplate,
    Rendered,
    Tools,
    messages_of,
    naming,
    plain_prompt,
    template_problem,
    tools_of,
)
from rlrun.runner.prompts.tokenizer_import import import_auto_tokenizer

Tokens = NDArray[np.int32]
Mask = NDArray[np.float32]
_ANSWER = "An-answer-that-nobody-gives."
"""A placeholder for an answer, to find out what the template renders after one."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A byte's spelling in vocabularies of SentencePiece."""
_SPACE = "\u2581"
"""A space in vocabularies of SentencePiece."""
_SPACE_OF_BYTES = "\u0120"
"""A space in byte-level vocabularies, which always have a token for it."""


class Tokenizer:
    """The tokenizer of a Hugging Face model folder."""

    def __init__(
        self,
        folder: Path | str,
        template_args: Mapping[str, Any] | None = None,
        code: Sequence[CodeFile] | None = None,
    ) -> None:
        """`template_args` are additional variables of the chat template. `code`: the folder's Python files,
        which may run; None: none may.

        Raises ValueError if the folder has no tokenizer, its config.json contradicts itself, or none of its
        files names an end-of-sequence token.
        """
        self.folder = Path(folder)
        self.template_args = dict(template_args or {})
        self._tokenizer = load_tokenizer(self.folder, code)
        self.eos_token_ids = self._end_tokens()
        """Tokens that end a response, the tokenizer's first."""
        self.images = ModelImages(self.folder)
        """What the model makes of images."""
        added = self._tokenizer.added_tokens_decoder
        self.special_ids = frozenset(self.eos_token_ids) | {n for n, token in added.items() if token.special}
        """Tokens that stand for no text, such as those that end responses."""
        special = [str(added[number]) for number in added if added[number].special]
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        vocabulary = self._tokenizer.get_vocab()
        self.vocab_size = 1 + max(vocabulary.values())
        """The number of token ids; the model may have more, which no text becomes."""
        self._longest = max(map(len, vocabulary))
        self._byte_level = is_byte_level(vocabulary)
        guard = Guard(self._tokenizer, self.eos_token_ids)
        self._template = ChatTemplate(self._tokenizer, guard, self.template_args)

    def encode_prompt(
        self, row: Row, apply_chat_template: bool, tools: Tools = (), limit: int | None = None
    ) -> Tokens:
        """Returns the tokens of a prompt, up to where the response begins; ValueError for a bad row.

        An image has a single placeholder, which `images.expand` repeats.
        The chat template receives the row's own tools (`tools` in its metadata), else `tools`. Of a text that
        certainly has more than `limit` tokens, only the beginning is encoded, which is enough to show it.
        """
        if apply_chat_template:
            rendered = self._rendered(row, messages_of(row), tools)
        else:
            rendered = Rendered(plain_prompt(row))
        text = rendered.text
        with naming(row):
            start = text if limit is None else text[: (limit + 1) * self._longest]
            tokens = self._encode(replace(rendered, text=start), special_tokens=not apply_chat_template)
            if len(start) == len(text) or len(tokens) > (limit or 0):
                return tokens
            return self._encode(rendered, special_tokens=not apply_chat_template)  # it drops much of a text

    def encode_chat(self, row: Row, messages: Sequence[Any], *, generation_prompt: bool) -> Tokens:
        """Returns the tokens of a row's messages; `generation_prompt` appends the beginning of an answer."""
        rendered = self._rendered(row, messages, generation_prompt=generation_prompt)
        with naming(row):
            return self._encode(rendered)

    def encode_marked(self, row: Row, messages: Sequence[Any]) -> tuple[Tokens, Mask] | None:
        """Returns the tokens of messages and a mask that is 1 where the template marks tokens as generated.

        None if the template has no such markers, or the tokenizer cannot tell which characters a token has.
        """
        if not self._template.marks_answers or not self._tokenizer.is_fast:
            return None
        rendered = self._rendered(row, messages, generation_prompt=False, answers=True)
        with naming(row):
            tokens, offsets = self._encode_with_offsets(rendered)
        mask = np.zeros(len(tokens), np.float32)
        for begin, end in rendered.answers:
            mask[(offsets[:, 0] < end) & (offsets[:, 1] > begin)] = 1
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
        with naming(row):
            self._require_template()
            return self._template.render(
                messages, tools_of(row, tools), generation_prompt=generation_prompt, answers=answers
            )

    def decode(self, tokens: Tokens) -> str:
        """Returns the text of a response, without special tokens."""
        return self.decode_batch([tokens])[0]

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """Returns the bytes of each token; special tokens are spelled by their names."""
        added = self._tokenizer.added_tokens_decoder
        spellings = self._tokenizer.convert_ids_to_tokens(list(tokens))
        return [
            str(added[token]).encode()
            if token in added
            else token_bytes(spelling or "", byte_level=self._byte_level)
            for token, spelling in zip(tokens, spellings, strict=True)
        ]

    def encode(self, text: str) -> Tokens:
        """Returns the tokens of a text, in which the names of special tokens become those tokens."""
        return self._encode(Rendered(text))

    def plain(self, text: str) -> str:
        """Returns a text without the names of special tokens (rlrun.plugins.session.Chat)."""
        if self._special is None:
            return text
        start = 0
        while match := self._special.search(text, start):
            # The text before and after the match may join to another name.
            text = text[: match.start()] + text[match.end() :]
            start = max(0, match.start() - self._longest)
        return text

    @property
    def image_placeholder(self) -> int | None:
        """Returns the token id that stands for images (rlrun.plugins.session.Chat)."""
        return self.images.placeholder

    def place(self, images: Sequence[Image]) -> tuple[PlacedImage, ...]:
        """Returns images with their numbers of tokens (rlrun.plugins.session.Chat)."""
        return self.images.place(images)

    def render(
        self, messages: Sequence[Message], tools: Tools = (), images: Sequence[PlacedImage] = ()
    ) -> Tokens:
        """Returns the tokens of a conversation up to where the answer begins (rlrun.plugins.session.Chat)."""
        self._require_template()
        rendered = self._template.render(messages, tools, generation_prompt=True)
        return self.images.expand(self._encode(rendered), images)

    def follow_up(
        self, messages: Sequence[Message], tools: Tools = (), images: Sequence[PlacedImage] = ()
    ) -> tuple[Tokens, Tokens]:
        """Returns the token that ends an answer, and the tokens up to the next (rlrun.plugins.session.Chat).

        The template renders a conversation whose answer is a known text. The tokens after that text begin
        with the special token that ends the answer; as it is special, no token merges across it.
        """
        self._require_template()
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        rendered = self._template.render([*before, *messages], tools, generation_prompt=True)
        tail = self._encode(rendered.after(_ANSWER))
        if not len(tail) or tail[0] not in self.eos_token_ids:
            raise ValueError(
                f"the chat template of {self.folder} ends an answer with "
                f"{self._tokenizer.decode(tail[:1])!r}, which is not an end-of-sequence token; add it to "
                "eos_token_id in generation_config.json"
            )
        return tail[:1], self.images.expand(tail[1:], images)

    def decode_batch(self, batch: Sequence[Tokens], *, special: bool = False) -> list[str]:
        """Returns the text of each response; `special` keeps special tokens."""
        texts: list[str] = self._tokenizer.batch_decode(
            [tokens.tolist() for tokens in batch],
            skip_special_tokens=not special,
            clean_up_tokenization_spaces=False,
        )
        return texts

    def _end_tokens(self) -> tuple[int, ...]:
        declared = declared_end_tokens(self.folder)
        end_token = self._tokenizer.eos_token_id
        tokens = tuple(dict.fromkeys([*([] if end_token is None else [end_token]), *declared]))
        if not tokens:
            raise ValueError(
                f"{self.folder} names no end-of-sequence token; set eos_token_id in generation_config.json"
            )
        return tokens

    def _encode(self, rendered: Rendered, special_tokens: bool = False) -> Tokens:
        rendered.text.encode()  # raises UnicodeEncodeError, a ValueError, for half a surrogate pair
        tokens: list[int] = []
        for _, piece in rendered.pieces():
            tokens += self._tokenizer.encode(piece, add_special_tokens=special_tokens, verbose=False)
        return np.array(tokens, dtype=np.int32)

    def _encode_with_offsets(self, rendered: Rendered) -> tuple[Tokens, NDArray[np.int64]]:
        """Returns the tokens, and the (start, end) of each token's characters in the text: `[tokens, 2]`."""
        rendered.text.encode()
        tokens, offsets = [], []
        for start, piece in rendered.pieces():
            encoded = self._tokenizer(
                piece, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            tokens += encoded["input_ids"]
            offsets += [(start + begin, start + end) for begin, end in encoded["offset_mapping"]]
        return np.array(tokens, np.int32), np.array(offsets, np.int64).reshape(-1, 2)

    def _require_template(self) -> None:
        if self._tokenizer.chat_template is None:
            raise ValueError(
                f"the tokenizer of {self.folder} has no chat template; set data.apply_chat_template = false"
            )


def load_tokenizer(folder: Path, code: Sequence[CodeFile] | None) -> Any:
    """Returns transformers' tokenizer of a model folder.

    `code`: the folder's Python files, which may run; None: none may. Raises ValueError if the folder has no
    tokenizer, its config.json contradicts itself, or its Python files are needed or not those of `code`.
    """
    from huggingface_hub.errors import StrictDataclassError

    if problem := template_problem(folder, template=False):
        raise ValueError(problem)
    if code is not None:
        check_code(folder, code)
    try:
        auto_tokenizer = import_auto_tokenizer(folder, own_code=code is not None)
        return auto_tokenizer.from_pretrained(folder, trust_remote_code=code is not None)
    except StrictDataclassError as error:
        reason = str(error.__cause__ or error)
        raise ValueError(f"{folder}/config.json contradicts itself: {reason}") from error
    except Exception as error:  # the boundary to other people's files, which fail to load in many ways
        if code is None and "trust_remote_code" in str(error):
            raise ValueError(
                f"the tokenizer or the config of {folder} has a class of its own: read the folder's .py "
                "files, and set model.trust_remote_code = true if they may run"
            ) from error
        raise ValueError(f"{folder} has no tokenizer that can be loaded: {first_line(error)}") from error


def is_byte_level(vocabulary: Collection[str]) -> bool:
    """Returns whether tokens are spelled byte by byte, as GPT-2 does."""
    return _SPACE_OF_BYTES in vocabulary


def token_bytes(spelling: str, *, byte_level: bool) -> bytes:
    """Returns the bytes of a token that is not an added one."""
    if byte_level:
        if all(char in _BYTE_OF_CHAR for char in spelling):
            return bytes(_BYTE_OF_CHAR[char] for char in spelling)
        return spelling.encode()
    if match := _BYTE.fullmatch(spelling):
        return bytes.fromhex(match[1])
    return spelling.replace(_SPACE, " ").encode()


def _byte_of_char() -> dict[str, int]:
    """Returns GPT-2's table: printable bytes are spelled as themselves, others as characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(unprintable)
    }


_BYTE_OF_CHAR = _byte_of_char()
