"""What an agent asked and was told, token by token.

A request whose messages go on from a recorded answer is answered from that answer's tokens, and what is new
is put behind them by the chat template: nothing is tokenised twice. Any other request begins another sample.

    [u]            ──▶ sample 0: prompt [u], answer a
    [u, a, tool]   ──▶ sample 0: … tool, answer b
    [u, a, other]  ──▶ sample 1: prompt [u a other], answer c     (a is trained in sample 0 alone)
    [v]            ──▶ sample 2: prompt [v], answer d
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.rollouts.agent.messages import Key, for_template, key_of
from rlrun.plugins.session import Chat
from rlrun.plugins.types import Message

Tools = Sequence[Mapping[str, Any]]
Thinking = Literal["keep", "template"]


@dataclass(frozen=True, slots=True)
class _Answered:
    """A place that a request may go on from."""

    said: tuple[Key, ...]
    """Every message up to the answer."""
    length: int
    """Tokens up to and with the answer."""


@dataclass(slots=True)
class Conversation:
    """One sample in the making."""

    trajectory: Trajectory
    tools: Tools
    asking: tuple[Key, ...] = ()
    """The messages that wait for an answer; empty while none do."""
    answered: list[_Answered] = field(default_factory=list)
    last: int = 0
    """When it was answered last: the execution's answers, counted."""


class Record:
    """All conversations of one execution."""

    def __init__(self, chat: Chat, thinking: Thinking) -> None:
        """`thinking`: `keep` what the policy thought in earlier turns, or leave it to the `template`, which
        may drop it after another question (Qwen3's does): that begins another sample, since tokens change.
        """
        self._chat = chat
        self._thinking = thinking
        self._conversations: list[Conversation] = []
        self._answers = 0
        self.closed = False

    def ask(self, messages: Sequence[Message], tools: Tools) -> Conversation:
        """The conversation that is to be answered next. ValueError for messages that cannot be rendered."""
        said = tuple(key_of(message) for message in messages)
        conversation = self._gone_on(messages, said, tools)
        if conversation is None:
            rendered = [for_template(message) for message in messages]
            conversation = self._begin(Trajectory(self._chat.render(rendered, tools)), tools)
        conversation.asking = said
        return conversation

    def answer(self, conversation: Conversation, made: Generation, message: Message) -> None:
        """Note what the policy made of it, and how the agent is told; nothing is noted once it is over."""
        if self.closed:
            return
        conversation.trajectory.add(made)
        self._answers += 1
        conversation.last = self._answers
        if len(made.tokens):
            said = (*conversation.asking, key_of(message))
            conversation.answered.append(_Answered(said, len(conversation.trajectory)))
        conversation.asking = ()

    def close(self) -> list[Trajectory]:
        """The samples, the one that was answered last at the end; those that never were left out."""
        self.closed = True
        ordered = sorted(self._conversations, key=lambda one: one.last)
        return [one.trajectory for one in ordered if one.trajectory.turns]

    def _gone_on(
        self, messages: Sequence[Message], said: tuple[Key, ...], tools: Tools
    ) -> Conversation | None:
        """A conversation that goes on from the longest recorded one that these messages begin with."""
        found = [
            (len(place.said), conversation, place)
            for conversation in self._conversations
            for place in conversation.answered
            if conversation.tools == tools and said[: len(place.said)] == place.said
        ]
        if not found:
            return None
        _, conversation, place = max(found, key=lambda one: one[0])
        new = messages[len(place.said) :]
        roles = {str(message["role"]) for message in new}
        dropped = self._thinking == "template" and "user" in roles
        if not new or "assistant" in roles or dropped:
            return None
        if conversation.asking or place is not conversation.answered[-1]:
            prompt = conversation.trajectory.tokens()[: place.length]
            conversation = self._begin(Trajectory(prompt), tools)
        end, given = self._chat.follow_up([for_template(message) for message in new], tools)
        last = conversation.trajectory.tokens()[-1]
        if last not in self._chat.eos_token_ids:  # a stop string or the limit ended it
            conversation.trajectory.give(end)
        conversation.trajectory.give(given)
        return conversation

    def _begin(self, trajectory: Trajectory, tools: Tools) -> Conversation:
        conversation = Conversation(trajectory, tools)
        self._conversations.append(conversation)
        return conversation
