"""Many calls over one WebSocket: against the sleeping engine, and against engines that answer badly."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from benchmarks.sleeping_engine import SleepingServer, SleepingSetup
from rlrun.plugins.generation import Sampling
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.channel_frames import CHANNEL_PATH, Frame, FrameWriter
from rlrun.runner.contracts.errors import BadAnswer, EngineError, EngineGone
from rlrun.runner.engines.client import client as client_module
from rlrun.runner.engines.client import connection
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from tests.waiting import until

LONG = 10**6


def request(name: str = "r", tokens: int = 4, seeds: tuple[int, ...] = (1, 2)) -> GenerateRequest:
    """Samples of exactly `tokens` tokens."""
    sampling = Sampling(max_new_tokens=tokens, min_new_tokens=tokens)
    return GenerateRequest(name, np.arange(5, dtype=np.int32), seeds, sampling)


@asynccontextmanager
async def sleeping(**settings: Any) -> AsyncIterator[tuple[SleepingServer, str]]:
    """A sleeping engine and its URL."""
    server = SleepingServer(SleepingSetup(max_running=64, token_seconds=0.0005, spread=0.0, **settings))
    try:
        yield server, server.start()
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_short_call_does_not_wait_for_a_long_one_on_the_same_socket() -> None:
    async with sleeping() as (server, url), EngineClient(url, own=True) as client:
        long = asyncio.create_task(client.generate(request("long", LONG)))
        answers = await asyncio.gather(*(client.generate(request(f"r{k}", 1 + k % 3)) for k in range(50)))
        assert [[len(one.tokens) for one in answer] for answer in answers] == [
            [1 + k % 3] * 2 for k in range(50)
        ]
        assert all(one.log_probs.tolist() == [-1.0] * len(one.tokens) for answer in answers for one in answer)
        assert not long.done()
        await client.abort(request("long", LONG))
        assert [one.finish for one in await long] == ["abort", "abort"]
        assert len(server.channel._channels) == 1


async def test_a_cancelled_call_ends_its_samples_and_no_others() -> None:
    async with sleeping() as (server, url), EngineClient(url, own=True) as client:
        calls = [asyncio.create_task(client.generate(request(name, LONG))) for name in ("a", "b")]
        await until(lambda: len(server.running) == 4, "4 running samples")
        calls[0].cancel()
        await until(lambda: len(server.running) == 2, "2 running samples")
        assert {sample.id for sample in server.running} == {"b-0", "b-1"}
        await client.abort_all()
        assert [one.finish for one in await calls[1]] == ["abort", "abort"]


async def test_a_client_that_disconnects_ends_all_its_samples() -> None:
    async with sleeping() as (server, url):
        client = EngineClient(url, own=True)
        call = asyncio.create_task(client.generate(request("a", LONG)))
        await until(lambda: len(server.running) == 2, "2 running samples")
        await client.close()
        with pytest.raises(EngineGone):
            await call
        await until(lambda: not server.busy, "an idle engine")
        with pytest.raises(EngineGone, match="the connection is closed"):
            await client.generate(request())


async def test_a_refusal_has_the_engine_s_message_and_ends_one_call() -> None:
    async with sleeping() as (_, url), EngineClient(url, own=True) as client:
        wrong = request("w" * 300)
        refused, answered = await asyncio.gather(
            client.generate(wrong), client.generate(request()), return_exceptions=True
        )
        assert isinstance(refused, EngineError)
        assert not isinstance(refused, BadAnswer)
        assert "/generate answered 400: a rid has at most 256 characters" in str(refused)
        assert isinstance(answered, list)


async def test_the_deadline_of_a_call_ends_it_in_the_engine_too() -> None:
    async with sleeping() as (server, url), EngineClient(url, 0.1, own=True) as client:
        with pytest.raises(TimeoutError, match=r"/generate did not answer within 0.1 s"):
            await client.generate(request("a", LONG))
        await until(lambda: not server.busy, "an idle engine")


async def test_an_engine_that_stops_ends_its_calls_and_one_that_comes_back_is_called_again() -> None:
    async with sleeping() as (server, url), EngineClient(url, own=True) as client:
        assert len(await client.generate(request())) == 2
        call = asyncio.create_task(client.generate(request("a", LONG)))
        await until(lambda: server.busy, "a busy engine")
        await asyncio.to_thread(server.stop)
        with pytest.raises(EngineGone):
            await call
        port = int(url.rpartition(":")[2])
        async with sleeping(port=port):
            assert len(await client.generate(request())) == 2


async def test_an_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_DELAY", 0.001)
    async with sleeping() as (_, url):
        pass
    async with EngineClient(url, own=True) as client:
        with pytest.raises(EngineGone, match="/generate cannot be reached"):
            await client.generate(request())


async def test_a_call_with_a_long_answer_has_a_request_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_FRAME_BYTES", 4 << 20)
    async with sleeping() as (server, url), EngineClient(url, own=True) as client:
        [few, many] = await client.generate_batch([request("a"), request("b", seeds=tuple(range(9)))])
        assert [len(few), len(many)] == [2, 9]
        assert not server.channel._channels
        assert len(await client.generate(request())) == 2
        assert len(server.channel._channels) == 1


async def test_a_channel_is_refused_without_the_key_and_to_web_pages() -> None:
    async with sleeping(api_key="sesame") as (_, url):
        async with EngineClient(url, own=True) as stranger:
            with pytest.raises(EngineError, match=f"{CHANNEL_PATH} answered 401") as caught:
                await stranger.generate(request())
            assert not isinstance(caught.value, BadAnswer)
        async with EngineClient(url, api_key="sesame", own=True) as client:
            assert len(await client.generate(request())) == 2
        headers = {"Authorization": "Bearer sesame", "Origin": "https://evil.example"}
        async with aiohttp.ClientSession(headers=headers) as page:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await page.ws_connect(url + CHANNEL_PATH)
            assert refused.value.status == 403


Misbehaviour = Callable[[web.WebSocketResponse], Awaitable[None]]


async def text(socket: web.WebSocketResponse) -> None:
    await socket.send_str("hello")


async def cut_off(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\x00" * 15)


async def other_call(socket: web.WebSocketResponse) -> None:
    writer = FrameWriter(socket.send_bytes)
    writer.put(Frame(99, 200, b"[]"))
    writer.put(Frame(0, 200, b"[]"))
    await writer.flush()


async def too_long(socket: web.WebSocketResponse) -> None:
    writer = FrameWriter(socket.send_bytes)
    writer.put(Frame(0, 200, b" " * (8 << 20)))
    await writer.flush()


async def listed(socket: web.WebSocketResponse) -> None:
    writer = FrameWriter(socket.send_bytes)
    body = (
        b'[{"output_ids":[7],"meta_info":{"id":"r-0","finish_reason":{"type":"stop"},'
        b'"output_token_logprobs":[[-1.0,7,null]]}},{}]'
    )
    writer.put(Frame(0, 200, body))
    await writer.flush()


@asynccontextmanager
async def misbehaving(misbehave: Misbehaviour | None) -> AsyncIterator[str]:
    """An engine that misbehaves once a channel is open; None: it redirects the client elsewhere."""

    async def connect(call: web.Request) -> web.StreamResponse:
        if misbehave is None:
            return web.HTTPTemporaryRedirect("/elsewhere")
        socket = web.WebSocketResponse()
        await socket.prepare(call)
        await socket.receive()
        await misbehave(socket)
        await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get(CHANNEL_PATH, connect)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("misbehave", "message"),
    [
        (text, r"/generate: ClientPayloadError\(.a message of type"),
        (cut_off, r"/generate: ClientPayloadError\(.a frame's header is cut off at byte 15"),
        (other_call, r"answered /generate with a list of 0 where 2 samples were asked for"),
        (too_long, r"/generate answered more than \d+ bytes"),
        (listed, r"answered /generate with \[7\] as output_ids for sample r-0; it must be base64"),
        (None, rf"{CHANNEL_PATH} answered 307"),
    ],
)
async def test_a_bad_answer_names_the_engine(misbehave: Misbehaviour | None, message: str) -> None:
    async with misbehaving(misbehave) as url, EngineClient(url, 30, name="engine 3", own=True) as client:
        with pytest.raises(EngineError, match=message) as caught:
            await client.generate(request())
        assert str(caught.value).startswith(f"engine 3 at {url}")
        assert isinstance(caught.value, BadAnswer) == (misbehave is not None)


async def test_a_bad_channel_is_left_for_another_engine() -> None:
    async with misbehaving(cut_off) as bad, sleeping() as (_, good):
        clients = [EngineClient(url, 30, own=True) for url in (bad, good)]
        pool = EnginePool(clients)
        assert len(await pool.generate(request())) == 2
        assert pool.take_bad_answers() == 1
        await pool.close()
