"""Engines that answer badly, by real HTTP: the error names the engine, and the sample is asked for again."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.contracts.errors import BadAnswer, EngineError
from rlrun.runner.contracts.weight_updates import Checksums
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.external import ExpectedModel, ExternalEngine
from rlrun.runner.engines.client.parsing import ModelLimits, max_answer_bytes
from rlrun.runner.engines.client.weight_client import check_checksums
from rlrun.runner.engines.pool import routing
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.weights.carriers.disk.updates import FolderWeights

REQUEST = GenerateRequest("r", np.array([5, 6, 7], np.int32), (1, 2), Sampling(max_new_tokens=4))
LIMITS = ModelLimits(vocabulary=100)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def sample(name: str, log_prob: float | None = -0.5, version: str = "0") -> dict[str, Any]:
    return {
        "output_ids": [8],
        "meta_info": {
            "id": name,
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": 3,
            "weight_version": version,
            "output_token_logprobs": [[log_prob, 8, None]],
        },
    }


class Engine:
    """Answers /generate as the test scripts it, and all other requests as an engine that serves `version`."""

    def __init__(
        self, answer: Handler | None = None, log_prob: float | None = -0.5, version: str = "0"
    ) -> None:
        self.log_prob, self.version = log_prob, version
        self.answer = answer or self.samples
        self.asked = 0

    async def samples(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return web.json_response([sample(name, self.log_prob, self.version) for name in body["rid"]])

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/generate":
            return web.json_response({"weight_version": "3", "data": 5})
        self.asked += 1
        return await self.answer(request)


@asynccontextmanager
async def serving(*engines: Engine) -> AsyncIterator[list[EngineClient]]:
    """Clients of these engines, called `engine 0` and so on."""
    runners, clients = [], []
    for number, engine in enumerate(engines):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", engine.handle)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0, shutdown_timeout=0.1).start()
        url = f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
        clients.append(EngineClient(url, 60, 60, name=f"engine {number}", limits=LIMITS))
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()
        for runner in runners:
            await runner.cleanup()


async def redirect(request: web.Request) -> web.StreamResponse:
    return web.HTTPTemporaryRedirect("/elsewhere")


async def error_object(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "out of memory"}})


async def status_500(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "out of memory\x1b[2J"}}, status=500)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * (1 << 16))


async def packed(request: web.Request) -> web.StreamResponse:
    raw = gzip.compress(b" " * (1 << 24))
    return web.Response(body=raw, headers={"Content-Encoding": "gzip"})


async def cut_off(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    raw = json.dumps([sample("r-0"), sample("r-1")]).encode()
    request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(raw) + 1) + raw)
    request.transport.close()
    return web.Response()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (error_object, r'answered /generate with {"error": {"message": "out of memory"}} where 2 samples'),
        (status_500, r"/generate answered 500: out of memory \[2J$"),
        (redirect, r"/generate answered 307: "),
        (endless, f"answered more than {max_answer_bytes([REQUEST])} bytes"),
        (packed, r"bytes that are not JSON"),
        (cut_off, r"/generate: ClientPayloadError"),
    ],
)
async def test_the_error_names_the_engine(answer: Handler, message: str) -> None:
    async with serving(Engine(answer)) as [client]:
        with pytest.raises(EngineError, match=message) as caught:
            await client.generate(REQUEST)
        assert str(caught.value).startswith(f"engine 0 at {client.url}")
        assert isinstance(caught.value, BadAnswer) == (answer is not redirect)


async def test_a_sample_is_asked_of_another_engine_and_the_bad_answer_is_counted() -> None:
    bad, good = Engine(log_prob=0.7), Engine()
    async with serving(bad, good) as clients:
        pool = EnginePool(clients)
        for _ in range(4):
            first, second = await pool.generate(REQUEST)
            assert first.log_probs.tolist() == second.log_probs.tolist() == [-0.5]
        assert pool.take_bad_answers() == bad.asked > 0
        assert pool.take_bad_answers() == 0


async def test_an_engine_is_asked_three_times_where_there_is_no_other() -> None:
    bad = Engine(log_prob=None)
    async with serving(bad) as clients:
        pool = EnginePool(clients, supervised=True)
        message = (
            r"^engine 0 at http.* answered /generate with log-prob null at token 0 of sample r-0; it must be"
        )
        with pytest.raises(BadAnswer, match=message):
            await pool.generate(REQUEST)
        assert bad.asked == pool.take_bad_answers() == routing.ATTEMPTS == 3
        with pytest.raises(BadAnswer, match=message):
            await pool.generate_batch([REQUEST])
        assert bad.asked == 6


async def test_an_engine_that_recovers_is_asked_again() -> None:
    flaky = Engine(log_prob=None)

    async def mended_later(request: web.Request) -> web.StreamResponse:
        if flaky.asked == 3:
            flaky.log_prob = -0.5
        return await flaky.samples(request)

    flaky.answer = mended_later
    async with serving(flaky) as clients:
        pool = EnginePool(clients)
        assert len(await pool.generate(REQUEST)) == 2
        assert pool.take_bad_answers() == 2


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2", "tokens of weights 2, although it serves weights 3"),
        ("4", "tokens of weights 4, although it was given none after 3"),
        ("default", "tokens of weights 0, although it serves weights 3"),
    ],
)
async def test_weights_that_an_engine_cannot_have(version: str, message: str) -> None:
    engine = Engine(version=version)
    async with serving(engine) as clients:
        pool = EnginePool(clients)
        assert await pool.update_weights(FolderWeights("f", 8, 3)) == 3
        with pytest.raises(BadAnswer, match=message):
            await pool.generate(REQUEST)
        engine.version = "3"
        assert [one.versions[0].version for one in await pool.generate(REQUEST)] == [3, 3]


async def test_what_an_external_engine_says_of_itself_is_checked_too() -> None:
    async with serving(Engine()) as [client]:
        wanted = ExpectedModel("engine", None, 64)
        engine = ExternalEngine("engine 0", client.url, None, wanted, (60.0, 60.0, 60.0))
        started = await engine.start()  # its /v1/models holds no list: nothing is known of its length
        await started.close()


@pytest.mark.parametrize("answer", [5, [5], [{}], [{"parallelism_info": [], "checksums": {}}], "ranks"])
def test_checksums_that_are_none(answer: Any) -> None:
    with pytest.raises(BadAnswer, match="instead of checksums by rank"):
        check_checksums("http://x", Checksums(({"a": "0"},), ()), answer)


async def test_many_requests_at_once_survive_an_engine_that_lies() -> None:
    bad, good = Engine(log_prob=float(7)), Engine()
    async with serving(bad, good) as clients:
        pool = EnginePool(clients)
        answers = await asyncio.gather(*(pool.generate(REQUEST) for _ in range(20)))
        assert all(one.log_probs.tolist() == [-0.5] for answer in answers for one in answer)
