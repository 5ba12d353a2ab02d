"""The task that an agent receives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.plugins.engines import Address, ServedEngine
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
    engines: Mapping[str, Address] = field(default_factory=dict)
    """The addresses of the models of `[[engines]]` that `rollout.function.engines` names."""

    _clients: dict[str, ServedEngine] = field(default_factory=dict, init=False, repr=False, compare=False)

    def engine(self, name: str) -> ServedEngine:
        """Returns a client of a model of `[[engines]]`. Raises ValueError if `engines` does not have it."""
        if name not in self.engines:
            raise ValueError(
                f'this execution may ask {", ".join(self.engines) or "no engines"}, not "{name}": add it to '
                "rollout.function.engines"
            )
        if name not in self._clients:
            self._clients[name] = ServedEngine(self.engines[name], self.seed)
        return self._clients[name]

    def as_json(self) -> dict[str, Any]:
        """Returns what a command reads from its standard input: every field except the keys."""
        return {
            "id": self.id,
            "messages": self.messages,
            "label": self.label,
            "metadata": self.metadata,
            "seed": self.seed,
            "base_url": self.base_url,
            "engines": {name: address.base_url for name, address in self.engines.items()},
        }
