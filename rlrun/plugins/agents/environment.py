"""The agent is the environment of the row, which asks the policy itself (docs/environments.md)."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.environments.declared import METADATA_KEY
from rlrun.plugins.environments.pool import EnvironmentPool
from rlrun.specs.sections.section import Section


class EnvironmentAgentParams(Section):
    """The environment has its own parameters, in `[data.environment]`."""


class EnvironmentAgent:
    """Calls `run` of the environment that the data source `environment` names, in its own process."""

    Params = EnvironmentAgentParams
    api_version = 1

    def __init__(self, params: EnvironmentAgentParams) -> None:
        self.params = params
        self._pool = EnvironmentPool()

    async def run(self, task: AgentTask) -> Mapping[str, Any]:
        """Returns what the environment returns. Raises EnvironmentFailure if it raises, its own
        InfrastructureError or PolicyError, and InfrastructureError if its process dies.
        """
        metadata = dict(task.metadata)
        key = metadata.pop(METADATA_KEY, None)
        engines = {name: asdict(address) for name, address in task.engines.items()}
        sent = {**task.as_json(), "api_key": task.api_key, "metadata": metadata, "engines": engines}
        async with self._pool.execution(key, task.id) as process:
            result: dict[str, Any] = await process.call("run", None, episode=task.id, task=sent)
            return result

    async def close(self) -> None:
        """Ends the environment's processes."""
        await self._pool.close()
