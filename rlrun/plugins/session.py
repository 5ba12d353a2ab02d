"""What a rollout is given: its way to the policy, and the tokenizer. The framework has the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlrun.plugins.generation import Generation, Sampling
from rlrun.plugins.types import Message, Prompt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens = NDArray[np.int32]


class Chat(Protocol):
    """The model's tokenizer and chat template."""

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """Tokens that end a response."""

    def encode(self, text: str) -> Tokens:
        """Tokens of a text; special tokens that it names are special, and none are added.

        Not for text of others, which could end a turn: give that to `render` or `follow_up` in a message.
        """

    def decode_batch(self, batch: Sequence[Tokens], *, special: bool = False) -> list[str]:
        """The texts of token sequences; `special`: with special tokens."""

    def plain(self, text: str) -> str:
        """A text without the names of special tokens."""

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Tokens:
        """A conversation by the chat template, up to where the policy's answer begins.

        The texts of messages and tools stay as they are, and the names of control tokens in them are plain
        text, so that no tool, page or agent can end a turn or begin one. ValueError where the template
        refuses the conversation, or would put control tokens together from these texts.
        """

    def follow_up(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[Tokens, Tokens]:
        """What the template puts between the text of an answer and that of the next: the token that ends the
        answer (`[1]`, which the policy made itself unless it was cut off), and `messages` with what leads up
        to the next answer. As in `render`, texts of messages cannot end a turn.
        """


class Session(Protocol):
    """One execution's way to the policy."""

    @property
    def id(self) -> str:
        """Of the execution, its own in the run."""

    @property
    def prompt(self) -> Prompt:
        """What it starts from."""

    @property
    def seed(self) -> int:
        """For what the rollout draws itself; told by the run's seed, the prompt and the sample's number."""

    @property
    def sampling(self) -> Sampling:
        """As the spec has it; `max_new_tokens` is what the policy may make in all."""

    @property
    def max_tokens(self) -> int:
        """The longest sample, its prompt included."""

    @property
    def max_turn_tokens(self) -> int:
        """The longest answer to one `generate`."""

    @property
    def chat(self) -> Chat:
        """Text to tokens and back."""

    async def generate(self, tokens: Tokens, sampling: Sampling | None = None) -> Generation:
        """What the policy makes of `tokens`, by `sampling` or else the spec's, within `max_tokens` and
        `max_turn_tokens`.

        Once the execution is no longer wanted the answer is empty, its finish `abort`; where `max_tokens`
        leaves no room it is empty, its finish `length`. A limit in `sampling` gives `length` as well, which
        makes the trajectory a truncated one: set its `status` where the rollout wanted a short answer. Let
        errors pass: they fail the execution.
        """


class SessionGroup(Protocol):
    """All executions of a prompt."""

    @property
    def prompt(self) -> Prompt:
        """What they start from."""

    @property
    def sessions(self) -> Sequence[Session]:
        """One for each execution."""

    async def generate(self, tokens: Tokens, sampling: Sampling | None = None) -> list[Generation]:
        """The same question for every execution, asked of the policy at once: one answer for each."""
