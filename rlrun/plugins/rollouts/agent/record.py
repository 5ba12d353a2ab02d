"""Records an agent's conversations with the policy, token by token.

A request whose messages continue a recorded conversation reuses its tokens: the chat template renders only
the new messages, and nothing is tokenised twice. Any other request begins another sample.

    [u]            ──▶ sample 0: prompt [u], answer a
    [u, a, tool]   ──▶ sample 0: … tool, answer b
    [u, a, other]  ──▶ sample 1: prompt [u a other], answer c     (a is trained only in sample 0)
    [v]            ──▶ sample 2: prompt [v], answer d
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.images import PlacedImage
from rlrun.plugins.rollouts.agent.credit import AnsweredTurn
from rlrun.plugins.rollouts.agent.history import History, Key
from rlrun.plugins.rollouts.agent.message_images import images_of
from rlrun.plugins.rollouts.agent.messages import for_template
from rlrun.plugins.rollouts.agent.request import RefusedRequest
from rlrun.plugins.session import Chat
from rlrun.plugins.types import Message

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np

Tools = Sequence[Mapping[str, Any]]
Thinking = Literal["keep", "template"]


@dataclass(frozen=True, slots=True)
class _Answered:
    """An answer from which a later request may continue."""

    keys: tuple[Key, ...]
    """All messages up to the answer, including it."""
    length: int
    """Number of tokens up to the end of the answer."""
    num_images: int
    """Number of images up to the end of the answer."""


@dataclass(slots=True)
class Conversation:
    """One sample that may still grow."""

    trajectory: Trajectory
    tools: Tools
    asking: tuple[Key, ...] = ()
    """The messages of the pending request; empty if no request is pending."""
    answered: list[_Answered] = field(default_factory=list)
    last: int = 0
    """Number of its last answer, counted over the execution; 0 if it has none."""
    model: str = "policy"
    """The model's name in its newest request."""

    @property
    def images(self) -> tuple[PlacedImage, ...]:
        """Returns all images so far."""
        return (*(self.trajectory.prompt_images or ()), *self.trajectory.images)


class Record:
    """Holds all conversations of one execution."""

    def __init__(
        self, chat: Chat, thinking: Thinking, history: History | None = None, cross_entropy: float = 0.0
    ) -> None:
        """`thinking` says what becomes of the thoughts of earlier turns: `keep` keeps them; `template` leaves
        it to the chat template, which may drop them after another question, as Qwen3's does. Dropping them
        changes the tokens, so it begins another sample. `history` says which messages count as recorded ones.
        `cross_entropy` is the weight of what the agent says between two answers; images have none.
        """
        self._chat = chat
        self.history = history or History()
        self._thinking = thinking
        self._cross_entropy = cross_entropy
        self._conversations: list[Conversation] = []
        self._answers = 0
        self.turns: list[AnsweredTurn] = []
        """The answers with tokens, in order."""
        self.closed = False

    def ask(self, messages: Sequence[Message], tools: Tools, model: str = "policy") -> Conversation:
        """Returns the conversation that a request continues or begins. `messages` are prepared by `history`.

        Raises ValueError for messages that cannot be rendered.
        """
        keys = tuple(map(self.history.key, messages))
        conversation = self._find_conversation(messages, keys, tools)
        if conversation is None:
            rendered = [for_template(message) for message in messages]
            images = self._chat.place(images_of(messages))
            prompt = self._chat.render(rendered, tools, images)
            conversation = self._begin(Trajectory(prompt, prompt_images=images), tools)
        conversation.asking = keys
        conversation.model = model
        return conversation

    def ask_tokens(self, tokens: Sequence[int], model: str = "policy") -> Conversation:
        """Returns the conversation that tokens continue or begin.

        They continue the longest recorded one that they begin with. Raises RefusedRequest for a token that
        the tokenizer does not have, which an engine on a GPU may die of, and for an image's placeholder, for
        which engines would look for an image.
        """
        asked = np.asarray(tokens, dtype=np.int32)
        if (highest := int(asked.max())) >= self._chat.vocab_size:
            raise RefusedRequest(
                f"token_ids has {highest}; the tokenizer's ids end at {self._chat.vocab_size - 1}"
            )
        continued = [
            (answered.length, conversation, answered)
            for conversation in self._conversations
            for answered in conversation.answered
            if answered.length < len(asked)
            and np.array_equal(asked[: answered.length], conversation.trajectory.tokens()[: answered.length])
        ]
        longest = max(continued, key=lambda one: one[0], default=None)
        length = 0 if longest is None else longest[0]
        self._refuse_placeholders(asked, length)
        if longest is not None:
            conversation = self._continued(*longest[1:])
            conversation.trajectory.give(asked[length:])
        else:
            conversation = self._begin(Trajectory(asked), ())
        conversation.asking = (("\0", f"tokens {len(self._conversations)}", ()),)  # no message has this role
        conversation.model = model
        return conversation

    def answer(self, conversation: Conversation, generation: Generation, message: Message) -> None:
        """Records the policy's tokens, and the message that the agent receives; does nothing once closed."""
        if self.closed:
            return
        if self._cross_entropy and len(generation.tokens):  # tokens without an answer are in no sample
            conversation.trajectory.weigh_given(self._cross_entropy)
        conversation.trajectory.add(generation)
        self.history.add_answer(message)
        self._answers += 1
        conversation.last = self._answers
        if len(generation.tokens):
            trajectory = conversation.trajectory
            self.turns.append(AnsweredTurn(self._answers, trajectory, len(trajectory.turns) - 1))
            keys = (*conversation.asking, self.history.key(message))
            answered = _Answered(keys, len(conversation.trajectory), len(conversation.images))
            conversation.answered.append(answered)
        conversation.asking = ()

    def close(self) -> list[Conversation]:
        """Returns the conversations with answers in the order of their last ones."""
        self.closed = True
        ordered = sorted(self._conversations, key=lambda conversation: conversation.last)
        return [conversation for conversation in ordered if conversation.trajectory.turns]

    def _find_conversation(
        self, messages: Sequence[Message], keys: tuple[Key, ...], tools: Tools
    ) -> Conversation | None:
        """Returns the conversation that these messages continue, extended by the new messages.

        It continues from the longest recorded beginning of the messages. None: they continue no conversation.
        """
        candidates = [
            (len(answered.keys), conversation, answered)
            for conversation in self._conversations
            for answered in conversation.answered
            if conversation.tools == tools and keys[: len(answered.keys)] == answered.keys
        ]
        if not candidates:
            return None
        _, conversation, answered = max(candidates, key=lambda candidate: candidate[0])
        new = messages[len(answered.keys) :]
        roles = {str(message["role"]) for message in new}
        dropped = self._thinking == "template" and "user" in roles
        if not new or "assistant" in roles or dropped:
            return None
        conversation = self._continued(conversation, answered)
        images = self._chat.place(images_of(new))
        end, follow_up = self._chat.follow_up([for_template(message) for message in new], tools, images)
        last = conversation.trajectory.tokens()[-1]
        if last not in self._chat.eos_token_ids:  # a stop string or the limit ended the answer
            conversation.trajectory.give(end)
        conversation.trajectory.give(follow_up, images)
        return conversation

    def _refuse_placeholders(self, tokens: "NDArray[np.int32]", start: int) -> None:
        """Raises RefusedRequest if tokens from `start` on have an image's placeholder."""
        placeholder = self._chat.image_placeholder
        if placeholder is None:
            return
        positions = np.flatnonzero(tokens[start:] == placeholder)
        if len(positions):
            raise RefusedRequest(
                f"token_ids has {placeholder}, an image's placeholder, at position {start + positions[0]}: "
                "token ids bring no images; send the conversation to /v1/chat/completions"
            )

    def _continued(self, conversation: Conversation, answered: _Answered) -> Conversation:
        """Returns the conversation that goes on after an answer.

        Where it has gone on otherwise, that is a branch, with the shared tokens as a prompt without loss.
        """
        if not conversation.asking and answered is conversation.answered[-1]:
            return conversation
        prompt = conversation.trajectory.tokens()[: answered.length]
        shared = conversation.images[: answered.num_images]
        return self._begin(Trajectory(prompt, prompt_images=shared), conversation.tools)

    def _begin(self, trajectory: Trajectory, tools: Tools) -> Conversation:
        conversation = Conversation(trajectory, tools)
        self._conversations.append(conversation)
        return conversation
