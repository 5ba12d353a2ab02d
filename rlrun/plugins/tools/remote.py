"""A tool that is a service of one's own: a retriever, a simulator, a gateway to others."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlrun.plugins.rewards.http_client import HttpClient, HttpParams
from rlrun.specs.sections.section import Section

logger = logging.getLogger(__name__)


class RemoteToolParams(HttpParams):
    """Which service, and what the policy is told of it."""

    attempts: int = Field(default=3, ge=1)
    """Requests for one answer, the first included; `tool_timeout` of the rollout may end it sooner."""
    connections: int = Field(default=64, ge=1)
    """Requests in flight at a time."""
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")
    """What the policy calls it."""
    about: str = Field(min_length=1)
    """What it does, for the policy."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Its arguments: a JSON schema for each, `{ query = { type = "string", description = "…" } }`."""
    required: tuple[str, ...] | None = None
    """Arguments that must be given. None: all of them."""


class _Answer(Section):
    """What a service sends."""

    result: str | None = None
    error: str | None = None


class RemoteTool:
    """POSTs the arguments as JSON; the answer is `{"result": text}`, or `{"error": text}` for a call that the
    policy got wrong and is told about. A service that gives neither after `attempts` fails the execution.
    """

    Params = RemoteToolParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {
        "url": "http://127.0.0.1:9/",
        "name": "ask",
        "about": "Asks.",
        "parameters": {"what": {"type": "string"}},
    }

    def __init__(self, params: RemoteToolParams) -> None:
        self._params = params
        self._required = list(params.parameters if params.required is None else params.required)
        shape = {"type": "object", "properties": params.parameters, "required": self._required}
        function = {"name": params.name, "description": params.about, "parameters": shape}
        self.schema = {"type": "function", "function": function}
        self._client = HttpClient(params, tell=logger.info)

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """What the service says. ValueError with its `error`, or for arguments that are missing or unknown;
        RuntimeError where it gives no answer.
        """
        missing = [name for name in self._required if name not in arguments]
        unknown = [name for name in arguments if name not in self._params.parameters]
        if missing or unknown:
            raise ValueError(f"missing arguments: {missing}; unknown: {unknown}")
        answer: _Answer = await self._client.post(self._params.url, dict(arguments), _read)
        if answer.error is not None:
            raise ValueError(answer.error)
        return str(answer.result)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.close()


def _read(answer: Any) -> _Answer:
    found = _Answer.model_validate(answer)
    if (found.result is None) == (found.error is None):
        raise ValueError('neither {"result"} nor {"error"}')
    return found
