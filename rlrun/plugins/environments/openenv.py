"""Environments behind a server of OpenEnv (https://github.com/meta-pytorch/OpenEnv)."""

import json
from typing import Any

from pydantic import Field

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.environments.turn import Turn
from rlrun.plugins.failures import Failure, InfrastructureError
from rlrun.specs.sections.section import Section


class OpenEnvParams(Section):
    """The server, and how its observations and actions look to the policy."""

    base_url: str = Field(min_length=1)
    """The server, such as `http://127.0.0.1:8000`. rlrun does not start it. It needs a session for each
    execution that runs at once (`max_concurrent_envs` of OpenEnv's `create_app`)."""
    prompt: str = Field(min_length=1)
    """The instructions, which precede the first observation."""
    resets: tuple[dict[str, Any], ...] = Field(default=({},), min_length=1)
    """The arguments of OpenEnv's `reset` for each task, such as `[{ seed = 1 }, { seed = 2 }]`."""
    observation: str | None = None
    """The field of observations that the policy reads. None: the whole observation as JSON."""
    action: str | None = None
    """The field of actions that takes the policy's answer. None: the answer is the whole action as JSON."""


class OpenEnv:
    """An execution is an episode of the server. `invalid` counts answers that were not actions."""

    Params = OpenEnvParams
    api_version = 1

    def __init__(self, params: OpenEnvParams) -> None:
        """Needs the package openenv."""
        import openenv

        self.params = params
        self._client = openenv.GenericEnvClient(base_url=params.base_url)
        self._invalid = 0

    def tasks(self) -> list[dict[str, Any]]:
        """Returns a task for each of `resets`."""
        prompt = self.params.prompt
        return [
            {"id": str(index), "prompt": prompt, "metadata": {"reset": reset}}
            for index, reset in enumerate(self.params.resets)
        ]

    async def reset(self, task: AgentTask) -> str:
        """Begins an episode, and returns the instructions and the first observation."""
        self._invalid = 0
        result = await self._call("reset", **task.metadata["reset"])
        return f"{self.params.prompt}\n\n{self._text(result.observation)}"

    async def step(self, action: str) -> Turn:
        """Sends an action. An answer that is none is not sent, and the policy reads why."""
        try:
            fields = (
                json.loads(action) if self.params.action is None else {self.params.action: action.strip()}
            )
            if not isinstance(fields, dict):
                raise ValueError("it is not a JSON object")
            result = await self._call("step", fields)
        except ValueError as error:
            self._invalid += 1
            return Turn(f"That is not an action: {error}.", 0.0, False, {"invalid": self._invalid})
        done = bool(result.done)
        observation = None if done else self._text(result.observation)
        return Turn(observation, result.reward or 0.0, done, {"invalid": self._invalid})

    async def close(self) -> None:
        """Ends the session."""
        await self._client.close()

    def _text(self, observation: dict[str, Any]) -> str:
        if self.params.observation is None:
            return json.dumps(observation, ensure_ascii=False)
        return str(observation[self.params.observation])

    async def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls the server. Raises InfrastructureError if it cannot be reached, and ValueError if it refuses
        an action.
        """
        from websockets.exceptions import WebSocketException

        try:
            return await getattr(self._client, method)(*arguments, **named)
        except (OSError, WebSocketException) as error:
            raise InfrastructureError(f"{self.params.base_url}: {error}", Failure.SERVICE) from error
        except RuntimeError as error:  # what OpenEnv's client raises for every answer that is an error
            if "VALIDATION_ERROR" not in str(error):
                raise
            raise ValueError("its fields are not those of this environment") from error
