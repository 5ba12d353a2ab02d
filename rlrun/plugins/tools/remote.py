"""Calls an HTTP service of yours as a tool: a retriever, a simulator, or a gateway to further tools."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlrun.plugins.images import ToolResult, image_of_url
from rlrun.plugins.rewards.http_client import HttpClient, HttpParams
from rlrun.specs.sections.section import Section

logger = logging.getLogger(__name__)


class RemoteToolParams(HttpParams):
    """The service's address, and the description of the tool that the policy reads."""

    attempts: int = Field(default=3, ge=1)
    """Largest number of requests for one answer, including the first. The rollout's `tool_timeout` may end a
    call earlier."""
    connections: int = Field(default=64, ge=1)
    """Largest number of requests in flight."""
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")
    """Name of the tool, as the policy calls it."""
    about: str = Field(min_length=1)
    """Description of the tool, which the policy reads."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the tool, a JSON schema for each: `{ query = { type = "string", description = "…" } }`."""
    required: tuple[str, ...] | None = None
    """Names of the required arguments. None: all arguments are required."""


class _Answer(Section):
    """The service's answer."""

    result: str | None = None
    images: tuple[str, ...] = ()
    error: str | None = None


class RemoteTool:
    """POSTs the arguments to a service as JSON.

    The service answers `{"result": text}`, or `{"error": text}` for a wrong call; the policy reads either
    text. A result may have `images`, a list of `data:` URLs, which the policy sees after the text. If no
    request of `attempts` brings such an answer, the execution fails.
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

    async def call(self, arguments: Mapping[str, Any]) -> str | ToolResult:
        """Returns the service's result.

        Raises ValueError with its `error`, or for missing or unknown arguments, and InfrastructureError if
        the service does not answer.
        """
        missing = [name for name in self._required if name not in arguments]
        unknown = [name for name in arguments if name not in self._params.parameters]
        if missing or unknown:
            raise ValueError(f"missing arguments: {missing}; unknown: {unknown}")
        answer: _Answer = await self._client.post(self._params.url, dict(arguments), _read)
        if answer.error is not None:
            raise ValueError(answer.error)
        if not answer.images:
            return str(answer.result)
        images = await asyncio.to_thread(lambda: tuple(map(image_of_url, answer.images)))
        return ToolResult(str(answer.result), images)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _read(answer: Any) -> _Answer:
    read = _Answer.model_validate(answer)
    if (read.result is None) == (read.error is None):
        raise ValueError('the answer must have either {"result"} or {"error"}')
    return read
