"""A tokenizer and a chat template with readable output, for tests of rollouts."""

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
    """A tokenizer with one token per character, and a template with one line per message.

    The line is `role: content` and the end token; a tool's message has no end token. A `\\0` in a message's
    content is removed, so that content cannot end a turn.
    """

    eos_token_ids = (END,)

    def encode(self, text: str) -> Tokens:
        """Returns one token per character; `\\0` becomes the end token."""
        return np.array([ord(letter) for letter in text], dtype=np.int32)

    def decode_batch(self, batch: Sequence[Tokens], *, special: bool = False) -> list[str]:
        """Returns the texts, with end tokens as `\\0` if `special`."""
        return ["".join(chr(token) for token in tokens if special or token != END) for tokens in batch]

    def plain(self, text: str) -> str:
        """Returns the text without end tokens."""
        return text.replace("\0", "")

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Tokens:
        """Returns the tokens of the tools as JSON, one line per message, and `assistant: `."""
        listed = f"tools: {json.dumps(list(tools))}\n" if tools else ""
        return self.encode(listed + "".join(map(_line, messages)) + "assistant: ")

    def follow_up(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[Tokens, Tokens]:
        """Returns the end token, and the tokens of one line per message and `assistant: `."""
        return self.encode("\0"), self.encode("\n" + "".join(map(_line, messages)) + "assistant: ")


def _line(message: Message) -> str:
    end = "" if message["role"] == "tool" else "\0"
    content = str(message["content"]).replace("\0", "")
    return f"{message['role']}: {content}{end}\n"
