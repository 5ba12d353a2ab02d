"""The task that an agent receives."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlrun.plugins.types import Message


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One execution of an agent: a prompt of the dataset, and the address at which the policy answers.

    Example: `openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key)`
    """

    id: str
    """The id of the execution, unique in the run."""
    messages: Sequence[Message]
    """The prompt."""
    label: Any
    """The row's label, for agents that judge their own answers; do not show it to the policy."""
    metadata: Mapping[str, Any]
    """The row's metadata."""
    seed: int
    """The seed for random choices of the agent."""
    base_url: str
    """The base URL of an OpenAI-compatible endpoint with `/chat/completions`. Every model name means the
    policy."""
    api_key: str
    """The key that identifies the execution of a request; it is valid for this execution only."""

    def as_json(self) -> dict[str, Any]:
        """Returns what a command reads from its standard input: every field except the key."""
        values = asdict(self)
        del values["api_key"]
        return values
