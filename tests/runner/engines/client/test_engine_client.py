"""The client against a scripted server that answers as SGLang does, and the pool over several clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest
from aiohttp import web

from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest, RequestOptions, Sampling
from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.contracts.weight_updates import (
    Checksums,
    GroupAddress,
    TensorSlot,
    UpdatedModels,
    WeightBucket,
)
from rlrun.runner.engines.client import connection
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.host.network import free_port
from rlrun.runner.weights.carriers.broadcast.updates import BroadcastWeights
from rlrun.runner.weights.carriers.disk.updates import FolderWeights, WeightDelta
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from rlrun.runner.weights.carriers.tensor.updates import SerializedWeights, SharedBuckets

Script = Callable[[str, Any], Awaitable[web.Response]]
REQUEST = GenerateRequest(
    "7", np.array([5, 6], np.int32), (11, -12), Sampling(4, stop=("x",), stop_token_ids=(9,))
)
MANIFEST = WeightManifest("rlrun-x", 128, 3, (TensorSlot("a.weight", "float32", (2, 2), 64),))


class Peer:
    """A server whose answers are a function; remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._script = script
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, shutdown_timeout=0.1)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body = orjson.loads(raw) if raw else None
        self.asked.append((request.path, body))
        return await self._script(request.path, body)


@pytest.fixture
async def make_peer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Script], Awaitable[Peer]]]:
    monkeypatch.setattr(connection, "FIRST_DELAY", 0.001)
    peers: list[Peer] = []

    async def make(script: Script) -> Peer:
        peers.append(Peer(script))
        await peers[-1].start()
        return peers[-1]

    yield make
    for peer in peers:
        await peer.stop()


def sglang_sample(name: str, tokens: list[int], **meta: Any) -> dict[str, Any]:
    return {
        "text": "",
        "output_ids": tokens,
        "meta_info": {
            "id": name,
            "finish_reason": {"type": "length", "length": len(tokens)},
            "weight_version": "default",
            "cached_tokens": 1,
            "output_token_logprobs": [[-0.5 * token, token, None] for token in tokens],
            **meta,
        },
    }


async def echo(path: str, body: Any) -> web.Response:
    """Each sample's one token is its seed's last digit."""
    if path != "/generate":
        return web.json_response({"success": True, "weight_version": "3"})
    seeds = [params["sampling_seed"] % 10 for params in body["sampling_params"]]
    return web.json_response([sglang_sample(i, [s]) for i, s in zip(body["rid"], seeds, strict=True)])


async def test_a_request_is_one_entry_for_each_seed(make_peer: Any) -> None:
    async def answer(path: str, body: Any) -> web.Response:
        spans = [{"version": "2", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 3}]
        stopped = {"type": "stop", "matched": 9}
        samples = [
            sglang_sample("7-0", [1, 2, 9], finish_reason=stopped, weight_versions=spans, weight_version="3"),
            sglang_sample("7-1", [], finish_reason={"type": "abort"}),
        ]
        return web.json_response(samples)

    peer = await make_peer(answer)
    async with EngineClient(peer.url) as client:
        first, second = await client.generate(REQUEST)
    (path, body), *rest = peer.asked
    assert (path, rest) == ("/generate", [])
    assert body["input_ids"] == [[5, 6], [5, 6]]
    assert body["rid"] == ["7-0", "7-1"]
    assert body["return_logprob"] is True
    assert [params.pop("sampling_seed") for params in body["sampling_params"]] == [11, -12]
    assert body["sampling_params"][0] == body["sampling_params"][1]
    assert body["sampling_params"][0] == {
        "max_new_tokens": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_new_tokens": 0,
        "stop": ["x"],
        "stop_token_ids": [9],
    }
    assert (first.tokens.tolist(), first.tokens.dtype) == ([1, 2, 9], np.int32)
    assert (first.log_probs.tolist(), first.log_probs.dtype) == ([-0.5, -1.0, -4.5], np.float32)
    assert (first.finish, first.cached_tokens) == ("stop", 1)
    assert first.versions == (VersionSpan(2, 0, 1), VersionSpan(3, 1, 3))
    assert (second.finish, second.tokens.shape, second.versions) == ("abort", (0,), ())


async def test_masks_are_asked_for_in_a_call_with_other_requests(make_peer: Any) -> None:
    async def answer(path: str, body: Any) -> web.Response:
        masks = {"output_token_sampling_mask": [[3, 5]], "output_token_sampling_logprobs": [-0.25]}
        return web.json_response([sglang_sample(name, [3], **masks) for name in body["rid"]])

    peer = await make_peer(answer)
    options = RequestOptions(return_sampling_mask=True)
    cut = replace(REQUEST, id="8", sampling=Sampling(4, top_k=2), options=options)
    async with EngineClient(peer.url) as client:
        whole, masked = await client.generate_batch([REQUEST, cut])
        await client.generate(replace(cut, options=RequestOptions()))
    (_, both), (_, unmasked) = peer.asked
    assert both["return_sampling_mask"] == [False, False, True, True]
    assert "return_sampling_mask" not in unmasked
    assert [made.log_probs.tolist() for made in (*whole, *masked)] == [[-1.5], [-1.5], [-0.25], [-0.25]]


async def test_control_calls(make_peer: Any) -> None:
    peer = await make_peer(echo)
    async with EngineClient(peer.url) as client:
        await client.abort_all()
        await client.pause("retract")
        await client.resume()
        await client.flush_cache()
        assert await client.health()
        assert await client.update_weights(MANIFEST) == 3
        assert await client.update_weights(FolderWeights("/models/x", 8, 3)) == 3
    assert [path for path, _ in peer.asked] == [
        "/abort_request",
        "/pause_generation",
        "/continue_generation",
        "/flush_cache",
        "/health",
        "/update_weights_from_tensor",
        "/pause_generation",
        "/update_weights_from_disk",
        "/continue_generation",
        "/model_info",
    ]
    assert peer.asked[5][1] == {
        "load_format": "shared_memory",
        "manifest": {
            "segment": "rlrun-x",
            "size": 128,
            "version": 3,
            "tensors": [{"name": "a.weight", "dtype": "float32", "shape": [2, 2], "offset": 64}],
        },
        "weight_version": "3",
        "flush_cache": False,
    }


async def test_a_bucket_is_broadcast_in_the_group_that_was_met(make_peer: Any) -> None:
    peer = await make_peer(echo)
    slots = (TensorSlot("a", "float32", (2, 2), 0), TensorSlot("b", "float8_e4m3fn", (4,), 16))
    async with EngineClient(peer.url) as client:
        for names in (("g1", "s"), ("g1", "s"), ("s", "g2")):
            groups = [GroupAddress(name, "10.0.0.1", 999, 3, "gloo") for name in names]
            await client.begin_update(groups, 1)
            await BroadcastWeights(8, 3, 2).load(client, WeightBucket(3, slots), groups[-1], 0)
            assert await client.end_update(None) == 3
    joined = [body["group_name"] for path, body in peer.asked if path == "/init_weights_update_group"]
    assert joined == ["g1", "s", "g2"]
    assert dict(peer.asked)["/destroy_weights_update_group"] == {"group_name": "g1"}
    assert dict(peer.asked)["/init_weights_update_group"] == {
        "master_address": "10.0.0.1",
        "master_port": 999,
        "rank_offset": 1,
        "world_size": 3,
        "group_name": "g2",
        "backend": "gloo",
    }
    assert dict(peer.asked)["/update_weights_from_distributed"] == {
        "names": ["a", "b"],
        "dtypes": ["float32", "float8_e4m3fn"],
        "shapes": [[2, 2], [4]],
        "group_name": "g2",
        "load_format": "flattened_bucket",
        "weight_version": "3",
        "flush_cache": True,
        "selector": "target",
    }


@pytest.mark.parametrize("models", ["target", "all"])
async def test_an_update_names_the_models_that_it_is_for(make_peer: Any, models: UpdatedModels) -> None:
    checksums = Checksums(({"a": "x"},), ())
    peer = await make_peer(echo)
    async with EngineClient(peer.url, models=models) as client:
        await client.begin_update()
        bucket = WeightBucket(3, (TensorSlot("a", "float32", (2, 2), 0),), {0: "x"})
        await SharedBuckets(8, 3, 1).load(client, bucket, None, 0)
        with pytest.raises(EngineError):
            await client.end_update(checksums)
        await client.update_weights(
            FolderWeights("/x", 8, 4, processes=1, deltas=(WeightDelta("/d", 3, 4, ("f",), 8),))
        )
    selected = [(path, body["selector"]) for path, body in peer.asked if "selector" in (body or {})]
    tensors = "/update_weights_from_tensor"
    assert selected == [
        ("/begin_weight_update", models),
        (tensors, models),
        ("/weights_checker", "target"),
        ("/begin_weight_update", "target"),
        (tensors, "target"),
    ]


class Caching:
    """An SGLang server with a request that runs: it keeps cached prefixes unless that request is retracted.

    As the real one, it changes its weights even where it then refuses to flush.
    """

    def __init__(self, *, refuses: bool = False) -> None:
        self.stale = False
        """It serves prefixes that other weights made than it has."""
        self._held = True
        self._refuses = refuses

    async def __call__(self, path: str, body: Any) -> web.Response:
        if path == "/pause_generation":
            self._held = body["mode"] == "in_place" or self._refuses
        elif path == "/continue_generation":
            self._held = True
        elif path.startswith("/update_weights"):
            self.stale = self._held or not body["flush_cache"]
            return web.json_response({}, status=400 if self._held and body["flush_cache"] else 200)
        return web.json_response({"success": True, "weight_version": "3"})


async def serialized(client: EngineClient) -> int:
    return await client.update_weights(SerializedWeights(("x",), 1, 3))


async def folder(client: EngineClient) -> int:
    return await client.update_weights(FolderWeights("/models/x", 8, 3))


async def buckets(client: EngineClient, payloads: tuple[str, ...]) -> int:
    groups = () if payloads else (GroupAddress("g", "10.0.0.1", 999, 2, "gloo"),)
    update = SharedBuckets(8, 3, 1) if payloads else BroadcastWeights(8, 3, 1)
    bucket = WeightBucket(3, (TensorSlot("a", "float32", (2,), 0),), dict(enumerate(payloads)))
    await client.begin_update(groups, 1)
    for _ in range(2):
        await update.load(client, bucket, *groups or (None,), 0)
    return await client.end_update(None)


WAYS = [serialized, folder, partial(buckets, payloads=("x",)), partial(buckets, payloads=())]
NAMES = ["serialized", "folder", "buckets in memory", "buckets broadcast"]


@pytest.mark.parametrize("update", WAYS, ids=NAMES)
async def test_no_prefix_of_the_old_weights_outlives_an_update_while_a_request_runs(
    make_peer: Any, update: Callable[[EngineClient], Awaitable[int]]
) -> None:
    server = Caching()
    async with EngineClient((await make_peer(server)).url) as client:
        assert await update(client) == 3
    assert not server.stale


@pytest.mark.parametrize("update", WAYS, ids=NAMES)
async def test_an_engine_that_keeps_its_prefixes_over_an_update_does_not_serve_it(
    make_peer: Any, update: Callable[[EngineClient], Awaitable[int]]
) -> None:
    server = Caching(refuses=True)
    async with EngineClient((peer := await make_peer(server)).url) as client:
        with pytest.raises(EngineError, match="answered 400"):
            await update(client)
    assert server.stale
    assert "/continue_generation" not in [path for path, _ in peer.asked]


async def test_a_refusal_carries_the_engine_s_message(make_peer: Any) -> None:
    async def refuse(path: str, body: Any) -> web.Response:
        return web.json_response({"error": {"message": "too long"}}, status=400)

    peer = await make_peer(refuse)
    async with EngineClient(peer.url) as client:
        with pytest.raises(EngineError, match=r"/generate answered 400: too long"):
            await client.generate(REQUEST)
        assert not await client.health()
    assert len(peer.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"detail": "?"},
        [sglang_sample("7-0", [1]), sglang_sample("7-1", [1], finish_reason={"type": "error"})],
        [sglang_sample("7-0", [1]), sglang_sample("7-1", [1], output_token_logprobs=[])],
    ],
)
async def test_a_broken_answer_is_an_engine_error(make_peer: Any, answer: Any) -> None:
    async def broken(path: str, body: Any) -> web.Response:
        return web.json_response(answer)

    peer = await make_peer(broken)
    async with EngineClient(peer.url) as client:
        with pytest.raises(EngineError):
            await client.generate(REQUEST)


async def test_only_safe_calls_are_repeated_after_a_broken_connection(make_peer: Any) -> None:
    peer = await make_peer(echo)
    connections = 0

    async def drop_two(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections % 3:
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    flaky = await asyncio.start_server(drop_two, "127.0.0.1", 0)
    async with flaky, EngineClient(f"http://127.0.0.1:{flaky.sockets[0].getsockname()[1]}") as client:
        await client.abort_all()
        assert connections == 3
        with pytest.raises(EngineError, match=r"/generate"):
            await client.generate(REQUEST)
        assert connections == 4
    assert peer.asked == []


async def test_a_connection_that_its_server_may_close_any_moment_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert connection.IDLE_SECONDS < 5
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.0)

    async def close_as_the_second_comes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(close_as_the_second_comes, "127.0.0.1", 0)
    async with server, EngineClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        for _ in range(2):
            await client.release_memory(["kv_cache"])  # not a call to make twice


@pytest.mark.parametrize(
    ("headers", "gone"),
    [({"X-SMG-Error-Code": "call_upstream_request_error"}, True), ({}, False)],
    ids=["a router that found nobody", "an engine that failed"],
)
async def test_a_router_s_own_failure_is_of_the_engine_behind_it(
    make_peer: Any, headers: dict[str, str], gone: bool
) -> None:
    async def fail(path: str, body: Any) -> web.Response:
        return web.Response(status=500, headers=headers)

    peer = await make_peer(fail)
    async with EngineClient(peer.url) as client:
        with pytest.raises(EngineError) as caught:
            await client.pause("retract")
    assert isinstance(caught.value, EngineGone) == gone


async def test_a_client_that_was_closed_asks_nothing_more(make_peer: Any) -> None:
    peer = await make_peer(echo)
    async with EngineClient(peer.url) as client:
        await client.pause("retract")
    with pytest.raises(EngineGone, match="the connection is closed"):
        await client.resume()
    assert len(peer.asked) == 1


async def test_an_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_DELAY", 0.001)
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    async with EngineClient(url) as client:
        with pytest.raises(EngineError, match=rf"engine at {url}/generate cannot be reached"):
            await client.generate(REQUEST)
        assert not await client.health()


async def test_deadlines(make_peer: Any) -> None:
    async def never(path: str, body: Any) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    peer = await make_peer(never)
    async with EngineClient(peer.url, generate_timeout=0.05, control_timeout=0.05) as client:
        with pytest.raises(TimeoutError, match=r"/generate did not answer within 0.05 s"):
            await client.generate(REQUEST)
        with pytest.raises(TimeoutError, match=r"/abort_request did not answer"):
            await client.abort_all()
        assert not await client.health()


def requests(count: int) -> list[GenerateRequest]:
    return [GenerateRequest(str(i), np.array([i], np.int32), (i, i + 1), Sampling(1)) for i in range(count)]


async def test_a_pool_splits_a_batch_by_order(make_peer: Any) -> None:
    peers = [await make_peer(echo) for _ in range(3)]
    pool = EnginePool([EngineClient(peer.url) for peer in peers])
    answers = await pool.generate_batch(requests(7))
    assert [[g.tokens.tolist() for g in answer] for answer in answers] == [[[i], [i + 1]] for i in range(7)]
    assert [peer.asked[0][1]["rid"][::2] for peer in peers] == [
        ["0-0", "1-0", "2-0"],
        ["3-0", "4-0", "5-0"],
        ["6-0"],
    ]
    assert await pool.generate_batch([]) == []
    await pool.close()


async def test_a_pool_sends_to_the_engine_with_the_least_to_do(make_peer: Any) -> None:
    release = asyncio.Event()

    async def slow(path: str, body: Any) -> web.Response:
        await release.wait()
        return await echo(path, body)

    peers = [await make_peer(slow) for _ in range(2)]
    pool = EnginePool([EngineClient(peer.url) for peer in peers])
    tasks = [asyncio.create_task(pool.generate(request)) for request in requests(6)]
    await asyncio.sleep(0)
    release.set()
    answers = await asyncio.gather(*tasks)
    assert [answer[0].tokens.tolist() for answer in answers] == [[i] for i in range(6)]
    assert [len(peer.asked) for peer in peers] == [3, 3]
    await pool.close()


async def test_a_pool_tells_all_and_checks_that_they_agree(make_peer: Any) -> None:
    async def behind(path: str, body: Any) -> web.Response:
        return web.json_response({"success": True, "weight_version": "2"})

    good, bad = await make_peer(echo), await make_peer(behind)
    pool = EnginePool([EngineClient(good.url), EngineClient(good.url)])
    assert await pool.update_weights(MANIFEST) == 3
    assert await pool.health() == {good.url: True}
    await pool.abort_all()
    assert len(good.asked) == 6
    await pool.close()
    split = EnginePool([EngineClient(good.url), EngineClient(bad.url)])
    with pytest.raises(EngineError, match=rf"{bad.url} serves weights 2 after an update to 3"):
        await split.update_weights(MANIFEST)
    await split.close()
