"""Requests of one session go where its tokens are cached, within reason."""

import asyncio
from collections.abc import Sequence

import numpy as np

from rlrun.plugins.generation import Generation, Sampling
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.engines.client.rooms import REGULAR
from rlrun.runner.engines.pool import affinity
from rlrun.runner.engines.pool.affinity import MAX_EXTRA_LOAD
from rlrun.runner.engines.pool.pool import EnginePool


class Client:
    """An engine's client that answers once the test lets it."""

    serving = REGULAR

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        self.asked += [request.id for request in requests]
        await self.gate.wait()
        return [[] for _ in requests]


def request(name: str, session: str = "", samples: int = 1) -> GenerateRequest:
    return GenerateRequest(name, np.ones(3, np.int32), tuple(range(samples)), Sampling(1), session=session)


async def pool_with_load(samples: int) -> tuple[EnginePool, list[Client], asyncio.Task[object]]:
    """Two engines; session "a" was answered by the first, which now runs so many samples."""
    clients = [Client("first"), Client("second")]
    made = EnginePool(clients)  # type: ignore[arg-type]
    await made.generate(request("a.0", "a"))
    clients[0].gate.clear()
    busy = asyncio.create_task(made.generate(request("other", samples=samples)))
    await asyncio.sleep(0)
    return made, clients, busy


async def test_a_session_stays_with_its_engine() -> None:
    made, [first, second], busy = await pool_with_load(MAX_EXTRA_LOAD)
    turn = asyncio.create_task(made.generate(request("a.1", "a")))
    await asyncio.sleep(0)
    await made.generate(request("b.0", "b"))
    first.gate.set()
    await asyncio.gather(busy, turn)
    assert first.asked == ["a.0", "other", "a.1"]
    assert second.asked == ["b.0"]


async def test_a_session_leaves_an_engine_that_is_busier_or_down() -> None:
    made, [first, second], busy = await pool_with_load(MAX_EXTRA_LOAD + 1)
    await made.generate(request("a.1", "a"))
    first.gate.set()
    await busy
    await made.generate(request("a.2", "a"))
    made.mark_down(1)
    await made.generate(request("a.3", "a"))
    assert second.asked == ["a.1", "a.2"]
    assert first.asked == ["a.0", "other", "a.3"]


async def test_executions_of_one_prompt_begin_where_it_is_cached() -> None:
    made, [first, second], busy = await pool_with_load(MAX_EXTRA_LOAD)
    begun = [asyncio.create_task(made.generate(request(f"a/{n}", f"a/{n}"))) for n in range(3)]
    await asyncio.sleep(0)
    first.gate.set()
    await asyncio.gather(busy, *begun)
    assert first.asked == ["a.0", "other", "a/0"]
    assert second.asked == ["a/1", "a/2"]


async def test_sessions_that_ended_long_ago_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(affinity, "MAX_SESSIONS", 3)
    made = EnginePool([Client("only")])  # type: ignore[list-item]
    for number in range(5):
        await made.generate(request("r", f"s{number}"))
    assert list(made._router._affinity._last) == ["s2", "s3", "s4"]
