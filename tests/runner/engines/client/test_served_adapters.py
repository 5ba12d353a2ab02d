"""The adapters of several versions on one server: when they are loaded, named by requests, and unloaded."""

import asyncio
from typing import Any

import pytest

from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.engines.client.served_adapters import ServedAdapters
from rlrun.runner.weights.carriers.tensor.updates import SerializedWeights, ServerAdapters


class Server:
    """Records control calls. A request that runs is an event, which its abort sets."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.running: dict[str, asyncio.Event] = {}
        self.adapters = ServedAdapters(self.post, "engine 0")

    async def post(self, path: str, body: dict[str, Any]) -> None:
        self.calls.append(" ".join([path, *map(str, body.values())]))
        if body.get("rid") in self.running:
            self.running[body["rid"]].set()

    async def load(self, version: int, room: int = 3) -> None:
        async def send() -> None:
            self.calls.append(f"load {version}")

        weights = SerializedWeights(8, version, ("p",))
        await self.adapters.load(ServerAdapters(weights, {}, {}, None, room), send)

    async def request(self, sample_id: str) -> int | None:
        async with self.adapters.use([sample_id]) as version:
            self.running[sample_id] = asyncio.Event()
            await self.running[sample_id].wait()
            return version

    async def begin(self, sample_id: str) -> "asyncio.Task[int | None]":
        task = asyncio.create_task(self.request(sample_id))
        await asyncio.sleep(0)
        return task

    async def unloads(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return [call for call in self.calls if call.startswith("/unload")]


async def test_a_request_keeps_its_version_which_is_unloaded_after_it() -> None:
    server = Server()
    await server.load(1)
    first = await server.begin("a")
    await server.load(2)
    second = await server.begin("b")
    assert await server.unloads() == []
    assert server.adapters.versions == [1, 2]
    server.running["a"].set()
    server.running["b"].set()
    assert [await first, await second] == [1, 2]
    assert await server.unloads() == ["/unload_lora_adapter policy-v1"]
    assert server.adapters.versions == [2]


async def test_the_oldest_requests_end_where_there_is_no_room() -> None:
    server = Server()
    tasks = []
    for version in (1, 2, 3):
        await server.load(version)
        tasks.append(await server.begin(f"r{version}"))
    await server.load(4)
    assert await tasks[0] == 1
    assert server.calls[-3:] == ["/abort_request r1", "/unload_lora_adapter policy-v1", "load 4"]
    assert server.adapters.versions == [2, 3, 4]
    assert not tasks[1].done()
    await asyncio.gather(*(server.post("", {"rid": f"r{version}"}) for version in (2, 3)))
    await asyncio.gather(*tasks)


async def test_a_version_of_a_trainer_before_its_restart_is_replaced_before_requests_name_it() -> None:
    server = Server()
    await server.load(4)
    await server.load(5)
    running = await server.begin("old")
    loading = asyncio.create_task(server.load(5))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(server.request("new"))
    assert await running == 5
    await loading
    assert server.calls[-3:] == ["/abort_request old", "/unload_lora_adapter policy-v5", "load 5"]
    await asyncio.sleep(0)
    server.running["new"].set()
    assert await waiting == 5


async def test_what_a_cancelled_call_left_running_is_aborted_before_the_unload() -> None:
    server = Server()
    await server.load(1)
    task = await server.begin("lost")
    task.cancel()
    await asyncio.wait([task])
    await server.load(2)
    await server.unloads()
    assert server.calls == ["load 1", "load 2", "/abort_request lost", "/unload_lora_adapter policy-v1"]


async def test_without_adapters_requests_name_none_and_after_a_failed_update_they_fail() -> None:
    server = Server()
    async with server.adapters.use(["x"]) as version:
        assert version is None
    await server.load(1)

    async def refuse() -> None:
        raise EngineError("no memory")

    update = ServerAdapters(SerializedWeights(8, 1, ("p",)), {}, {}, None, 3)
    with pytest.raises(EngineError, match="no memory"):
        await server.adapters.load(update, refuse)
    with pytest.raises(EngineGone, match="engine 0 has no adapters: the last update failed"):
        await server.request("x")
