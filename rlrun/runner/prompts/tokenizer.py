"""Text to tokens and back, with the model's own tokenizer and chat template."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Message, Row

Tokens = NDArray[np.int32]
Mask = NDArray[np.float32]
Tools = Sequence[Mapping[str, Any]]

_ANSWER = "An-answer-that-nobody-gives."
"""Stands for what the policy answered, where the template is asked what comes after it."""
_GENERATION = re.compile(r"\{%-?\s*generation\b")
"""Where a template marks what the assistant generates."""


class Tokenizer:
    """The tokenizer of a Hugging Face model folder."""

    def __init__(self, folder: Path | str, template_args: Mapping[str, Any] | None = None) -> None:
        """`template_args`: variables of the chat template beside its usual ones.

        ValueError when the folder has no tokenizer, or nothing in it names an end-of-sequence token.
        """
        from transformers import AutoTokenizer  # takes seconds, and brings torch with it

        self.folder = Path(folder)
        self._template_args = dict(template_args or {})
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.folder} has no tokenizer that can be loaded: {error}") from error
        self.eos_token_ids = self._end_tokens()
        """Tokens that end a response, the tokenizer's own first."""
        special = [str(one) for one in self._tokenizer.added_tokens_decoder.values() if one.special]
        self._special = re.compile("|".join(map(re.escape, special))) if special else None

    def encode_prompt(self, row: Row, apply_chat_template: bool, tools: Tools = ()) -> Tokens:
        """The tokens of a prompt, up to where the response begins; ValueError says what is wrong with it.

        `tools` are for the chat template; a row's own, under `tools` in its metadata, outrank them.
        """
        if not apply_chat_template:
            return self._encode(_plain(row), special_tokens=True)
        return self._encode(self._render(row, _messages(row), generation_prompt=True, tools=tools))

    def encode_demonstration(self, row: Row, apply_chat_template: bool) -> tuple[Tokens, Tokens]:
        """Prompt and response tokens of a row for SFT; the response ends in the token that stops generation.

        With a chat template the response is what the template makes of it as the assistant's turn. ValueError
        where the prompt, as it would be given for generation, is no prefix of the whole conversation.
        """
        prompt = self.encode_prompt(row, apply_chat_template)
        if row.response is None:
            raise ValueError(f"row {row.id}: SFT needs a demonstration; set the data source's response_key")
        if not apply_chat_template:
            response = self._encode(row.response)
        else:
            answer = {"role": "assistant", "content": row.response}
            conversation = self._render(row, [*_messages(row), answer], generation_prompt=False)
            response = _continuation(row, prompt, self._encode(conversation))
        return prompt, self._ended(response)

    def encode_conversation(self, row: Row) -> tuple[Tokens, Tokens, Mask]:
        """A finished chat for SFT: tokens up to the first answer, those from there on, which are trained.

        Trained are the assistant's turns, as the template marks them (`{% generation %}`) or, where it marks
        none, as it renders them turn by turn, each up to the token that ends it. ValueError for a chat that
        does not end with an answer, or whose turns come out differently once others follow.
        """
        messages = _messages(row)
        if messages[-1].get("role") != "assistant":
            raise ValueError(
                f"row {row.id}: SFT needs a demonstration; end the messages with an assistant's, or set the "
                "data source's response_key"
            )
        marked = _GENERATION.search(str(self._tokenizer.chat_template or ""))
        tokens, mask = self._marked(row, messages) if marked else self._by_turn(row, messages)
        trained = np.flatnonzero(mask)
        if not len(trained):
            raise ValueError(f"row {row.id}: the chat template leaves nothing of the assistant's turns")
        begin, end = trained[0], trained[-1] + 1
        return tokens[:begin], tokens[begin:end], mask[begin:end]

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

    def _marked(self, row: Row, messages: Sequence[Any]) -> tuple[Tokens, Mask]:
        """The chat's tokens, and 1 on those within the template's generation markers."""
        try:
            found = self._tokenizer.apply_chat_template(
                list(messages),
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
                **self._template_args,
            )
        except Exception as error:  # the boundary to the template, a program that came with the model
            raise ValueError(f"row {row.id}: the chat template refuses it: {error}") from error
        return np.array(found["input_ids"], np.int32), np.array(found["assistant_masks"], np.float32)

    def _by_turn(self, row: Row, messages: Sequence[Any]) -> tuple[Tokens, Mask]:
        """The chat's tokens, and 1 on those that an assistant's turn adds to what generation starts from."""
        tokens = self._encode(self._render(row, messages, generation_prompt=False))
        mask = np.zeros(len(tokens), dtype=np.float32)
        for turn in (place for place, one in enumerate(messages) if one.get("role") == "assistant"):
            before = self._encode(self._render(row, messages[:turn], generation_prompt=True))
            after = self._encode(self._render(row, messages[: turn + 1], generation_prompt=False))
            _continuation(row, before, tokens)
            _continuation(row, after, tokens)
            ends = np.flatnonzero(np.isin(after, self.eos_token_ids))
            mask[len(before) : ends[-1] + 1 if len(ends) else len(after)] = 1
        return tokens, mask

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
        return np.array(self._tokenizer.encode(text, add_special_tokens=special_tokens), dtype=np.int32)

    def _render(self, row: Row, messages: Sequence[Any], generation_prompt: bool, tools: Tools = ()) -> str:
        try:
            return self._template(messages, row.metadata.get("tools") or tools, generation_prompt)
        except ValueError as error:
            raise ValueError(f"row {row.id}: {error}") from error

    def _template(self, messages: Sequence[Any], tools: Tools, generation_prompt: bool) -> str:
        if self._tokenizer.chat_template is None:
            raise ValueError(
                f"the tokenizer of {self.folder} has no chat template; set data.apply_chat_template = false"
            )
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages),
                    tools=list(tools) or None,
                    add_generation_prompt=generation_prompt,
                    tokenize=False,
                    **self._template_args,
                )
            )
        except Exception as error:  # the boundary to the template, a program that came with the model
            raise ValueError(f"the chat template refuses it: {error}") from error

    def _ended(self, response: Tokens) -> Tokens:
        """Cut after the last end token (the template may add more between turns), or with one appended."""
        ends = np.flatnonzero(np.isin(response, self.eos_token_ids))
        if len(ends):
            return response[: ends[-1] + 1]
        return np.append(response, np.int32(self.eos_token_ids[0]))


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


def _messages(row: Row) -> Sequence[Any]:
    return [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt


def _continuation(row: Row, prompt: Tokens, conversation: Tokens) -> Tokens:
    if not np.array_equal(conversation[: len(prompt)], prompt):
        raise ValueError(
            f"row {row.id}: the chat template renders the prompt of a finished conversation differently from "
            "the prompt for generation, so that the policy would be trained on what it never sees"
        )
    return conversation[len(prompt) :]
