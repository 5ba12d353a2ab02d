"""How many samples wait for room in the KV caches of SGLang servers."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from rlrun.runner.contracts.errors import BadAnswer, EngineError
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.control import EngineLoad
from rlrun.runner.engines.client.parsing import ModelLimits
from rlrun.runner.engines.pool import queue_watch
from rlrun.runner.engines.pool.engine_slot import EngineSlot
from rlrun.runner.engines.pool.queue_watch import QueueCounts, watch_queues
from tests.waiting import PATIENCE

RANK = {"num_running_reqs": 3, "num_waiting_reqs": 5, "max_running_requests": 32, "token_usage": 0.75}


@pytest.mark.parametrize(
    ("load", "waiting"),
    [
        pytest.param(EngineLoad(3, 5, 32, 0.75), 5, id="full cache"),
        pytest.param(EngineLoad(32, 5, 32, 0.75), 0, id="as many run as may"),
        pytest.param(EngineLoad(3, 5, 32, 0.1), 0, id="prompts arrive"),
        pytest.param(EngineLoad(3, 0, 32, 0.9), 0, id="none waits"),
    ],
)
def test_samples_that_wait_for_the_cache(load: EngineLoad, waiting: int) -> None:
    counts = QueueCounts()
    counts.add(load)
    share = {"rollout/waiting_for_cache": waiting / 8} if waiting else {}
    assert counts.take() == share
    assert counts.take() == {}


class Server:
    """Answers /v1/loads with this, or with 404; counts how often it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0
        self.asked_twice = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert (request.path, request.query["include"]) == ("/v1/loads", "core")
        self.asked += 1
        if self.asked == 2:
            self.asked_twice.set()
        return web.HTTPNotFound() if self.answer is None else web.json_response(self.answer)

    async def start(self) -> tuple[web.AppRunner, EngineClient]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner, EngineClient(url, 60, 60, limits=ModelLimits(vocabulary=100))


async def test_loads_of_all_ranks_are_added_up() -> None:
    runner, client = await Server({"loads": [RANK, RANK | {"token_usage": 0.5}]}).start()
    async with client:
        assert await client.load() == EngineLoad(6, 10, 64, 0.75)
    await runner.cleanup()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(None, EngineError, id="not served"),
        pytest.param({"loads": 3}, BadAnswer, id="no list"),
        pytest.param({"loads": [RANK | {"num_waiting_reqs": "5"}]}, BadAnswer, id="no number"),
        pytest.param({"loads": [RANK | {"token_usage": None}]}, BadAnswer, id="no share"),
    ],
)
async def test_a_load_that_cannot_be_read(answer: Any, error: type[Exception]) -> None:
    runner, client = await Server(answer).start()
    async with client:
        with pytest.raises(error):
            await client.load()
    await runner.cleanup()


async def test_engines_are_asked_until_they_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_watch, "POLL_SECONDS", 0.0)
    servers = [Server({"loads": [RANK]}), Server(None)]
    started = [await server.start() for server in servers]
    counts = QueueCounts()
    slots = [EngineSlot(client, number) for number, (_, client) in enumerate(started)]
    task = asyncio.create_task(watch_queues(slots, counts))
    await asyncio.wait_for(servers[0].asked_twice.wait(), PATIENCE)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert servers[1].asked == 1
    assert counts.take() == {"rollout/waiting_for_cache": 5 / 8}
    for runner, client in started:
        await client.close()
        await runner.cleanup()
