"""The sleeping engine: real time in milliseconds, no computation."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from rlrun.plugins.generation import Sampling
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.sleeping.server import SleepingServer
from rlrun.runner.engines.sleeping.setup import SleepingSetup
from rlrun.runner.weights.carriers.native.updates import WeightManifest


@pytest.fixture
def server() -> Iterator[SleepingServer]:
    server = SleepingServer(SleepingSetup(max_running=4, token_seconds=0.0005, mean_tokens=20.0, spread=0.5))
    yield server
    server.stop()


@pytest.fixture(params=[True, False], ids=["channel", "a request each"])
async def client(server: SleepingServer, request: pytest.FixtureRequest) -> AsyncIterator[EngineClient]:
    async with EngineClient(server.start(), 30, 30, own=request.param) as client:
        yield client


async def until_it_sleeps(server: SleepingServer) -> None:
    """Until it has been asked, and a moment more: time enough for some tokens."""
    while not server._sleepers.busy:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)


def request(name: str = "r", samples: int = 6, **sampling: int) -> GenerateRequest:
    fields = {"max_new_tokens": 30} | sampling
    return GenerateRequest(name, np.arange(5, dtype=np.int32), tuple(range(samples)), Sampling(**fields))  # type: ignore[arg-type]


async def test_lengths_depend_on_the_seed_alone(client: EngineClient) -> None:
    made, again = await asyncio.gather(client.generate(request()), client.generate(request("other")))
    lengths = [len(one.tokens) for one in made]
    assert lengths == [len(one.tokens) for one in again]
    assert len(set(lengths)) > 2
    assert [one.finish for one in made] == ["length" if length == 30 else "stop" for length in lengths]
    assert all(len(one.log_probs) == len(one.tokens) for one in made)


async def test_an_abort_leaves_what_the_time_was_enough_for(
    client: EngineClient, server: SleepingServer
) -> None:
    long = request("long", 6, max_new_tokens=10**6, min_new_tokens=10**6)
    running = asyncio.create_task(client.generate(long))
    await until_it_sleeps(server)
    await client.abort(long)
    made = await running
    assert [one.finish for one in made] == ["abort"] * 6
    assert len(made[0].tokens) > 0


async def test_new_weights_in_mid_sample_and_pauses(client: EngineClient, server: SleepingServer) -> None:
    running = asyncio.create_task(client.generate(request("r", 1, max_new_tokens=2000, min_new_tokens=2000)))
    await until_it_sleeps(server)
    await client.pause("in_place")
    assert await client.update_weights(WeightManifest("nothing", 8, 3, ())) == 3
    await client.resume()
    [one] = await running
    assert [span.version for span in one.versions] == [0, 3]
    assert (one.versions[0].start, one.versions[-1].end) == (0, 2000)
    assert await client.health()
