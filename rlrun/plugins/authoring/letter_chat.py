"""A tokenizer and a chat template that can be read at a glance, for the tests of rollouts."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Message

Tokens = NDArray[np.int32]
END = 0
"""The token that ends an answer of a `ScriptedSession`."""


class LetterChat:
    """A tokenizer of letters, and a template of one line a message: `role: content` and the end token.

    Contents cannot end a turn: their `\\0` is left out.
    """

    eos_token_ids = (END,)

    def encode(self, text: str) -> Tokens:
        """Every character is a token; `\\0` is the end token."""
        return np.array([ord(letter) for letter in text], dtype=np.int32)

    def decode_batch(self, batch: Sequence[Tokens], *, special: bool = False) -> list[str]:
        """The text of each; `special`: with end tokens."""
        return ["".join(chr(token) for token in tokens if special or token != END) for tokens in batch]

    def plain(self, text: str) -> str:
        """The text without end tokens."""
        return text.replace("\0", "")

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Tokens:
        """The tools as JSON, then a line for each message."""
        listed = f"tools: {json.dumps(list(tools))}\n" if tools else ""
        return self.encode(listed + "".join(map(_line, messages)) + "assistant: ")

    def follow_up(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[Tokens, Tokens]:
        """The end token, then a line for each message."""
        return self.encode("\0"), self.encode("\n" + "".join(map(_line, messages)) + "assistant: ")


def _line(message: Message) -> str:
    end = "" if message["role"] == "tool" else "\0"
    content = str(message["content"]).replace("\0", "")
    return f"{message['role']}: {content}{end}\n"
