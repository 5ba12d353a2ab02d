"""What a model that is reached by chat messages answers: text without tokens or log-probs.

messages ─▶ ChatModel (rlrun.runner.engines.chat_server) ─▶ ChatAnswer ─▶ a sample's text
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One choice of a chat completion.

    Example: `ChatAnswer(text="4", is_cut=False, message={"role": "assistant", "content": "4"})`
    """

    text: str
    """What the model said, without its reasoning where the server separates that."""
    is_cut: bool
    """The answer reached its length limit."""
    message: Mapping[str, Any]
    """The message as the server sent it, which the next request of a conversation repeats."""
    calls: Sequence[Mapping[str, Any]] = ()
    """The tool calls as the server sent them: `id`, and a `function` with `name` and `arguments` as JSON."""
    reasoning: str | None = None
    """The model's reasoning, if the server separates it."""
    num_tokens: int | None = None
    """Number of generated tokens that the server counted; None if it does not say."""


class ChatModel(Protocol):
    """A model behind a chat-completions server."""

    async def answers(self, body: Mapping[str, Any], seeds: Sequence[int]) -> list[ChatAnswer]:
        """Returns one answer per seed to the same messages.

        Raises InfrastructureError if the server does not answer within the budget of retries, and
        EngineError if it refuses the request.
        """
