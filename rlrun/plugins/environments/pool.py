"""The processes of the environments that a rollout or an agent runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlrun.plugins.environments.declared import declared
from rlrun.plugins.environments.process import EnvironmentProcess


class EnvironmentPool:
    """Starts the processes of an environment when an execution needs it, and spreads executions over them."""

    def __init__(self) -> None:
        self._processes: dict[str, list[EnvironmentProcess]] = {}

    @asynccontextmanager
    async def execution(self, key: object, id: str) -> AsyncIterator[EnvironmentProcess]:
        """Yields the process for an execution, whose end the process is told.

        `key` is a row's metadata `METADATA_KEY`. Raises ValueError if no data source declares it.
        """
        process = self._least_loaded(key)
        process.load += 1
        completed = False
        try:
            yield process
            completed = True
        finally:
            process.load -= 1
            process.tell("end", episode=id, reuse=completed)

    async def close(self) -> None:
        """Ends the processes of all environments."""
        await asyncio.gather(*(process.close() for some in self._processes.values() for process in some))

    def _least_loaded(self, key: object) -> EnvironmentProcess:
        spec = declared(key)
        name = str(key)
        if name not in self._processes:
            self._processes[name] = [EnvironmentProcess(spec) for _ in range(spec.processes)]
        return min(self._processes[name], key=lambda process: process.load)
