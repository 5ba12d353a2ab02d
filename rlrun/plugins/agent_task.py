"""What an agent is given."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlrun.plugins.types import Message


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One execution of an agent: a prompt of the dataset, and where the policy answers.

    Example: `openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key)`
    """

    id: str
    """Of the execution, its own in the run."""
    messages: Sequence[Message]
    """The prompt."""
    label: Any
    """The row's label, for agents that judge themselves; it is not for the policy."""
    metadata: Mapping[str, Any]
    """The row's metadata."""
    seed: int
    """For what the agent draws itself."""
    base_url: str
    """Of an OpenAI-compatible endpoint, `/chat/completions` beneath it. Any model name is the policy."""
    api_key: str
    """Says whose conversation a request belongs to; good for this execution alone."""

    def as_json(self) -> dict[str, Any]:
        """What a command reads from its standard input: all but the key."""
        values = asdict(self)
        del values["api_key"]
        return values
