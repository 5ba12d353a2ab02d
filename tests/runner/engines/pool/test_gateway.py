"""A real sglang-router before engines that only sleep: what goes by way of it, and which engines it knows."""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sleeping_engine import SleepingServer, SleepingSetup
from rlrun.plugins.generation import Sampling
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.http import protocol
from rlrun.runner.engines.pool.gateway import Gateway
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.engines.pool.supervisor import RestartBudget
from rlrun.runner.engines.process.sglang_router import RouterServer, router_arguments
from rlrun.runner.host.background import cancel_all
from tests.sglang_cpu.servers import router_setup
from tests.waiting import PATIENCE

ENDLESS = {"max_new_tokens": 10**6, "min_new_tokens": 10**6}
Engine = tuple[multiprocessing.process.BaseProcess, str]
StartEngine = Callable[[], Engine]


def request(name: str, samples: int = 4, **sampling: int) -> GenerateRequest:
    fields = {"max_new_tokens": 30} | sampling
    return GenerateRequest(name, np.arange(5, dtype=np.int32), tuple(range(samples)), Sampling(**fields))  # type: ignore[arg-type]


def serve(pipe: Pipe) -> None:
    """An engine in a process of its own, which takes what the router adds to a request, as a server does."""
    added = ("background", "log_metrics", "model", "no_logs", "return_bytes", "return_entropy")
    protocol._GENERATE_KEYS |= {*added, "return_hidden_states", "return_text_in_logprobs"}
    pipe.send(SleepingServer(SleepingSetup(token_seconds=0.001, mean_tokens=20.0, spread=0.5)).start())
    pipe.recv()


@pytest.fixture(scope="module")
def start_engine() -> Iterator[StartEngine]:
    context = multiprocessing.get_context("spawn")
    started: list[tuple[multiprocessing.process.BaseProcess, Pipe]] = []

    def start() -> Engine:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        started.append((process, ours))
        assert ours.poll(PATIENCE)
        return process, ours.recv()

    yield start
    for process, _ in started:
        process.kill()


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine) -> str:
    """Returns the address of an engine that runs during all tests."""
    return start_engine()[1]


@asynccontextmanager
async def through_gateway(folder: Path, *urls: str) -> AsyncIterator[tuple[Gateway, EnginePool]]:
    """A router that knows these engines, and a pool that asks for samples by way of it."""
    gateway = Gateway(router_setup(folder, policy="round_robin"))
    pool = EnginePool(
        [EngineClient(url, 60, 30) for url in urls], supervised=True, send_sample=gateway.generate
    )
    try:
        await gateway.start(pool.slots)
        yield gateway, pool
    finally:
        await gateway.close()
        await pool.close()


async def listed(gateway: Gateway, *urls: str) -> None:
    """Return when the router's list is this."""
    await gateway._wait_for_list(lambda found: found == set(urls), f"list {urls}")


ENDED = "the router (sglang-router) ended (signal SIGKILL): "


def kill(gateway: Gateway) -> None:
    assert gateway._server is not None
    assert gateway._server._process is not None
    os.kill(gateway._server._process.pid, signal.SIGKILL)


async def test_samples_are_those_that_engines_make_without_it(tmp_path: Path, engine: str) -> None:
    async with through_gateway(tmp_path, engine) as (_, pool), EngineClient(engine, 60, 30) as client:
        routed, direct = await pool.generate(request("a")), await client.generate(request("b"))
        assert [one.tokens.tolist() for one in routed] == [one.tokens.tolist() for one in direct]
        assert [one.log_probs.tolist() for one in routed] == [one.log_probs.tolist() for one in direct]
        assert [one.versions for one in routed] == [one.versions for one in direct]
        assert len({len(one.tokens) for one in routed}) > 1
    assert not (tmp_path / "router.key.json").exists()


async def test_an_abort_finds_the_samples_whichever_engine_has_them(
    tmp_path: Path, engine: str, start_engine: StartEngine
) -> None:
    async with through_gateway(tmp_path, engine, start_engine()[1]) as (_, pool):
        endless = request("endless", 4, **ENDLESS)
        running = asyncio.create_task(pool.generate(endless))
        while not running.done():
            await pool.abort(endless)
            await asyncio.sleep(0.05)
        assert [one.finish for one in await running] == ["abort"] * 4


async def test_an_engine_that_is_lost_leaves_the_list_and_one_that_returns_joins_it(
    tmp_path: Path, engine: str, start_engine: StartEngine
) -> None:
    process, dying = start_engine()
    async with through_gateway(tmp_path, engine, dying) as (gateway, pool):
        await listed(gateway, engine, dying)
        keeping = asyncio.create_task(gateway.supervise(pool.slots, RestartBudget(0), print))
        running = asyncio.create_task(
            pool.generate(request("r", 4, min_new_tokens=1000, max_new_tokens=1000))
        )
        await asyncio.sleep(0)
        process.kill()
        await pool.wait_until_down(1)  # found out by a sample that was there
        assert [len(one.tokens) for one in await running] == [1000] * 4
        await listed(gateway, engine)

        again = start_engine()[1]
        await pool.readmit(1, EngineClient(again, 60, 30))
        await listed(gateway, engine, again)
        assert not keeping.done()
        await cancel_all([keeping])


async def test_a_router_that_dies_is_started_again_while_restarts_are_left(
    tmp_path: Path, engine: str
) -> None:
    said: list[str] = []
    async with through_gateway(tmp_path, engine) as (gateway, pool):
        keeping = asyncio.create_task(gateway.supervise(pool.slots, RestartBudget(1), said.append))
        kill(gateway)
        assert len(await pool.generate(request("after"))) == 4
        [line] = said
        assert line.startswith(ENDED)
        assert line.endswith("; starting it again (0 restarts left)")
        kill(gateway)
        with pytest.raises(JobError) as caught:
            await keeping
        assert str(caught.value).startswith(ENDED)
        assert "router.log" in caught.value.details


@pytest.mark.parametrize(
    ("interpreter", "arguments", "error"),
    [
        (
            None,
            {"policy": "cache_aware", "cache_threshold": 7},
            r"exit code 1\): ValueError: Configuration error: .*cache_threshold",
        ),
        (sys.executable, {}, r"exit code 1\): ModuleNotFoundError: No module named 'sglang_router'"),
        ("/nowhere/python", {}, "/nowhere/python"),
    ],
)
async def test_a_router_that_cannot_start_gives_its_own_last_error(
    tmp_path: Path, interpreter: str | None, arguments: dict[str, object], error: str
) -> None:
    gateway = Gateway(router_setup(tmp_path, interpreter, **arguments))
    with pytest.raises(JobError, match=error):
        await gateway.start([])
    await gateway.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[str]:
    """Returns the address of a router that no job has started; its key is "open"."""
    (tmp_path / "running").mkdir()
    server = RouterServer(router_setup(tmp_path / "running", policy="round_robin"))
    server.launch()
    try:
        yield server.wait()
    finally:
        server.stop()


async def test_a_router_that_runs_already_lists_the_engines_of_a_job_while_it_lasts(
    tmp_path: Path, engine: str, running: str
) -> None:
    setup = replace(router_setup(tmp_path), url=running)
    left = Gateway(setup)  # of a job that was killed
    pool = EnginePool([EngineClient(engine, 60, 30)])
    await left.start(pool.slots)
    gateway = Gateway(setup)
    await gateway.start(pool.slots)
    sending = EnginePool([EngineClient(engine, 60, 30)], send_sample=gateway.generate)
    direct = await pool.generate(request("b"))
    routed = await sending.generate(request("a"))
    assert [one.tokens.tolist() for one in routed] == [one.tokens.tolist() for one in direct]
    await listed(gateway, engine)
    await gateway.close()
    await listed(left)
    assert (await left._call("GET", "/workers"))["workers"] == []
    for each in (pool, sending):
        await each.close()
    assert left._connection is not None
    await left._connection.close()


async def test_a_router_that_does_not_answer_is_named() -> None:
    setup = replace(router_setup(Path(), "python"), url="http://127.0.0.1:9", start_timeout=0.0)
    with pytest.raises(JobError, match=r"the router at http://127.0.0.1:9 \(engine.router_url\) does not"):
        await Gateway(setup).start([])


def test_what_the_spec_gives_comes_last_and_the_key_on_no_command_line(tmp_path: Path) -> None:
    words = router_arguments(router_setup(tmp_path, "python", cache_threshold=0.5, log_level="info"), 1, 2)
    assert words | {"cache-threshold": 0.5, "log-level": "info", "port": 1, "prometheus-port": 2} == words
    assert "api-key" not in words
