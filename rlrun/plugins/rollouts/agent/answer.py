"""What the policy answered, before it is written in the format of a request."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlrun.plugins.generation import Generation


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the policy."""

    message: Mapping[str, Any]
    """The assistant's message in the form of chat completions."""
    finish: Literal["stop", "length"]
    prompt_tokens: int
    generation: Generation
    name: str
    """Unique in the run: `7.2-3` is the third answer of execution 7.2."""
    number: int
    """Its number among the answers of the execution."""
    model: str = "policy"
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def completion_tokens(self) -> int:
        """The number of tokens that were drawn."""
        return len(self.generation.tokens)

    @property
    def text(self) -> str:
        """The answer without thoughts and calls."""
        return str(self.message.get("content") or "")

    @property
    def thoughts(self) -> str:
        """The policy's thoughts."""
        return str(self.message.get("reasoning_content") or "")

    @property
    def calls(self) -> Sequence[Mapping[str, Any]]:
        """Tool calls in the form of chat completions."""
        return self.message.get("tool_calls") or ()


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream (server-sent events)."""

    data: Mapping[str, Any] | str
    name: str = ""
