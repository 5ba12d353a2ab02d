"""An engine's handle: which processes it has."""

from typing import Any

import pytest

from rlrun.runner.cluster.start_engines import EngineHandle
from rlrun.runner.contracts.errors import MachinesFailed


class LostCluster:
    """A cluster that ends processes, and can start no others."""

    def __init__(self, processes: list[object]) -> None:
        self.processes = processes

    def end(self, processes: list[object]) -> None:
        for process in processes:
            self.processes.remove(process)

    async def replace(self, processes: list[object]) -> list[object]:
        self.end(processes)
        raise MachinesFailed("Ray is lost")

    async def launch(self, requests: tuple[object, ...]) -> list[object]:
        raise MachinesFailed("Ray is lost")


async def test_processes_are_ended_once_where_no_others_can_be_started() -> None:
    cluster: Any = LostCluster([process := object()])
    unused: Any = None
    plan: Any = type("Plan", (), {"port": None})
    handle = EngineHandle(cluster, (), plan, unused, unused)
    handle.processes = [process]  # type: ignore[list-item]
    for _ in range(2):
        with pytest.raises(MachinesFailed, match="Ray is lost"):
            await handle.restart()
    handle.leave()
    assert not cluster.processes
