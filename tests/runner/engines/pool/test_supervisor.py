"""Engines that come and go: what the pool asks of whom, and what the supervisor does about it."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Sampling
from rlrun.runner.contracts.errors import EngineError, EngineGone, JobError, NodeLost
from rlrun.runner.engines.client.rooms import REGULAR
from rlrun.runner.engines.pool import elastic as elastic_module
from rlrun.runner.engines.pool import supervisor as supervisor_module
from rlrun.runner.engines.pool.elastic import ElasticEngines
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.engines.pool.supervisor import RestartBudget, Supervisor
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from rlrun.runner.weights.carriers.tensor.updates import SerializedWeights


class Client:
    """An engine that answers with the weights it serves, until it is gone."""

    serving = REGULAR

    def __init__(self, name: str) -> None:
        self.url = name
        self.version = 0
        self.payloads: list[str] = []
        self.asked: list[str] = []
        self.gone = False
        self.closed = False
        self.memory: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        self.asked += [request.id for request in requests]
        await self.hold.wait()
        if self.gone:
            raise EngineGone(f"{self.url} broke")
        tokens = np.array([self.version], np.int32)
        return [[Generation(tokens, np.zeros(1, np.float32), "stop", ())] for _ in requests]

    async def update_weights(self, update: WeightManifest | SerializedWeights) -> int:
        if self.gone:
            raise EngineGone(f"{self.url} broke")
        if isinstance(update, SerializedWeights):
            self.payloads += update.payloads
        self.version = update.version
        return self.version

    async def abort_all(self) -> None:
        if self.gone:
            raise EngineGone(f"{self.url} broke")

    async def abort_until_idle(self) -> None:
        self.memory.append("settle")

    async def release_memory(self, tags: Sequence[str]) -> None:
        self.memory.append(f"release {' '.join(tags)}")

    async def resume_memory(self, tags: Sequence[str]) -> None:
        self.memory.append(f"resume {' '.join(tags)}")

    async def close(self) -> None:
        self.closed = True


class Engine:
    """A process that dies when told to; its next start gives the next client, or an error."""

    def __init__(self, starts: list[Client | JobError], name: str = "engine 0") -> None:
        self.name = name
        self.room = True
        self.left = 0
        self.died = asyncio.Event()
        self.failure = JobError("engine 0 died: killed")
        self._starts = starts

    async def watch(self) -> None:
        await self.died.wait()
        raise self.failure

    async def has_room(self) -> bool:
        return self.room

    def leave(self) -> None:
        self.left += 1

    async def restart(self) -> Client:
        self.died.clear()
        start = self._starts.pop(0)
        if isinstance(start, JobError):
            raise start
        return start


def request(name: str) -> GenerateRequest:
    return GenerateRequest(name, np.array([1], np.int32), (1,), Sampling(4))


def manifest(version: int) -> WeightManifest:
    return WeightManifest("rlrun-x", 64, version, ())


def pool_of(*clients: Client | None, supervised: bool = True) -> EnginePool:
    return EnginePool(clients, supervised=supervised)  # type: ignore[arg-type]


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(supervisor_module, "CAUSE_SECONDS", 0.01)
    monkeypatch.setattr(elastic_module, "ROOM_SECONDS", 0.0)


async def test_requests_of_a_lost_engine_go_to_another() -> None:
    first, second = Client("a"), Client("b")
    pool = pool_of(first, second)
    first.hold.clear()
    running = asyncio.create_task(pool.generate(request("x")))
    await turns()
    first.gone = True
    first.hold.set()
    assert len(await running) == 1
    assert second.asked == ["x"]
    await pool.generate(request("y"))
    assert (first.asked, second.asked) == (["x"], ["x", "y"])


async def test_a_lost_engine_is_an_error_without_a_supervisor() -> None:
    gone = Client("a")
    gone.gone = True
    pool = pool_of(gone, supervised=False)
    with pytest.raises(EngineGone):
        await pool.generate(request("x"))
    with pytest.raises(EngineGone):
        await pool.update_weights(manifest(1))


async def test_a_restarted_engine_first_gets_the_current_weights() -> None:
    first, second, again = Client("a"), Client("b"), Client("c")
    pool = pool_of(first, second)
    first.gone = True
    assert await pool.update_weights(manifest(7)) == 7
    assert second.version == 7
    await pool.readmit(0, again)  # type: ignore[arg-type]
    assert again.version == 7
    assert first.closed
    await pool.generate(request("x"))
    assert again.asked == ["x"]


async def test_a_batch_waits_for_its_own_engine() -> None:
    """Which engine runs what must not depend on who died."""
    first, second, again = Client("a"), Client("b"), Client("c")
    pool = pool_of(first, second)
    first.gone = True
    running = asyncio.create_task(pool.generate_batch([request("x"), request("y")]))
    await turns()
    assert not running.done()
    assert second.asked == ["y"]
    await pool.readmit(0, again)  # type: ignore[arg-type]
    assert len(await running) == 2
    assert again.asked == ["x"]


async def test_every_start_reads_a_payload_of_its_own() -> None:
    first, second = Client("a"), Client("b")
    pool = pool_of(first, second)
    await pool.update_weights(SerializedWeights(8, 1, tuple("abcdef"), copies=3))
    assert (first.payloads, second.payloads) == (["a"], ["b"])
    for payload in "df":
        again = Client("c")
        await pool.readmit(1, again)  # type: ignore[arg-type]
        assert again.payloads == [payload]
    with pytest.raises(EngineError, match="lost 3 times within one step"):
        await pool.readmit(1, Client("d"))  # type: ignore[arg-type]


async def test_an_engine_that_crashes_twice_at_the_same_weights_is_not_started_a_third_time() -> None:
    said: list[str] = []
    crash = JobError("engine 0 died: its process crashed: SIGILL (Illegal instruction)")
    pool, engine = pool_of(Client("a")), Engine([crash, Client("b")])
    engine.failure = crash
    await pool.update_weights(manifest(2))
    engine.died.set()
    with pytest.raises(JobError, match="crashed with SIGILL at the same place before"):
        await Supervisor(pool, [engine], RestartBudget(3), said.append).run()  # type: ignore[list-item]
    assert len(said) == 1


async def test_an_engine_that_dies_is_started_again_and_serves() -> None:
    said: list[str] = []
    first, again = Client("a"), Client("b")
    pool, engine = pool_of(first), Engine([JobError("no port"), again])
    watching = asyncio.create_task(Supervisor(pool, [engine], RestartBudget(3), said.append).run())  # type: ignore[list-item]
    await pool.update_weights(manifest(2))
    first.gone = True
    engine.died.set()
    assert (await pool.generate(request("x")))[0].tokens.tolist() == [2]
    assert again.asked == ["x"]
    await turns(500)
    assert said[0] == "engine 0 died: killed; starting engine 0 again (2 restarts left)"
    assert said[1] == "no port; starting engine 0 again (1 restarts left)"
    assert said[2].startswith("engine 0 is back after ")
    watching.cancel()


async def test_the_last_failure_ends_the_job_when_no_restart_is_left() -> None:
    pool, engine = pool_of(Client("a")), Engine([JobError("no port")])
    engine.died.set()
    with pytest.raises(JobError, match="no port"):
        await Supervisor(pool, [engine], RestartBudget(1), lambda text: None).run()  # type: ignore[list-item]


async def test_an_engine_whose_node_is_not_replaced_is_not_started_again_and_again() -> None:
    said: list[str] = []
    lost = NodeLost("node 10.0.0.2 of the cluster is lost")
    pool, engine = pool_of(Client("a")), Engine([lost, Client("b")])
    engine.died.set()
    with pytest.raises(NodeLost):
        await Supervisor(pool, [engine], RestartBudget(3), said.append).run()  # type: ignore[list-item]
    assert len(said) == 1  # each further try would wait for a node again


async def test_an_engine_whose_connection_breaks_is_started_again_though_it_seems_well() -> None:
    said: list[str] = []
    broken, again = Client("a"), Client("b")
    broken.gone = True
    pool, engine = pool_of(broken), Engine([again])
    watching = asyncio.create_task(Supervisor(pool, [engine], RestartBudget(1), said.append).run())  # type: ignore[list-item]
    await pool.generate(request("x"))
    assert said[0].startswith("engine 0 cannot be reached; ")
    watching.cancel()


async def test_engines_sleep_once_and_wake_by_parts() -> None:
    first, second = Client("a"), Client("b")
    pool = pool_of(first, second)
    await pool.sleep()
    await pool.sleep()
    await pool.wake("weights")
    await pool.wake("kv_cache")
    await pool.wake("kv_cache")
    assert first.memory == second.memory
    assert first.memory == [
        "settle",
        "release weights kv_cache cuda_graph",
        "resume weights",
        "resume cuda_graph kv_cache",
    ]


async def test_an_engine_that_dies_in_its_sleep_is_started_when_there_is_memory_for_it() -> None:
    pool, engine = pool_of(Client("a")), Engine([Client("b")])
    watching = asyncio.create_task(Supervisor(pool, [engine], RestartBudget(1), lambda text: None).run())  # type: ignore[list-item]
    await pool.sleep()
    engine.died.set()
    await turns(500)
    assert engine._starts
    await pool.wake("kv_cache")
    await pool.generate(request("x"))
    assert not engine._starts
    watching.cancel()


def watch_elastic(
    pool: EnginePool, engines: list[Engine], least: int, budget: int = 0, patience: float = 60.0
) -> tuple[asyncio.Task[None], list[str]]:
    said: list[str] = []
    elastic = ElasticEngines(engines, least, patience, said.append)
    supervisor = Supervisor(pool, engines, RestartBudget(budget), said.append, elastic)  # type: ignore[arg-type]
    return asyncio.create_task(supervisor.run()), said


async def test_an_elastic_engine_joins_with_the_current_weights_when_there_is_room() -> None:
    first, second = Client("a"), Client("b")
    pool, engines = pool_of(first, None), [Engine([]), Engine([second], "engine 1")]
    engines[1].room = False
    watching, said = watch_elastic(pool, engines, least=1)
    await pool.update_weights(manifest(3))
    await pool.generate(request("x"))
    assert pool.engines_up == 1
    engines[1].room = True
    await turns(500)
    assert (pool.engines_up, second.version) == (2, 3)
    first.gone = True
    await pool.generate(request("y"))
    assert second.asked == ["y"]
    assert said[0].startswith("1 of 2 engines are there, at least 1 are needed; the others join when")
    assert said[1] == "the cluster has room for engine 1; starting it"
    assert said[2].startswith("engine 1 has joined after ")
    watching.cancel()


async def test_an_elastic_engine_that_loses_its_node_leaves_and_comes_back_at_no_cost() -> None:
    pool, engines = pool_of(Client("a"), Client("b")), [Engine([]), Engine([Client("c")], "engine 1")]
    watching, said = watch_elastic(pool, engines, least=1)
    engines[1].room = False
    engines[1].died.set()
    await turns(500)
    assert (pool.engines_up, engines[1].left) == (1, 1)
    assert said == ["engine 0 died: killed; engine 1 leaves: 1 of 2 engines are there, at least 1 are needed"]
    await pool.update_weights(manifest(4))
    engines[1].room = True
    await turns(500)
    assert pool.engines_up == 2
    assert {slot.client.version for slot in pool.slots} == {4}  # type: ignore[attr-defined]
    watching.cancel()


async def test_a_job_does_not_go_on_for_long_with_too_few_engines() -> None:
    pool, engines = pool_of(Client("a"), Client("b")), [Engine([]), Engine([], "engine 1")]
    watching, _ = watch_elastic(pool, engines, least=2, patience=0.01)
    engines[1].room = False
    engines[1].died.set()
    with pytest.raises(NodeLost, match=r"1 of 2 engines are there.*within 0\.01 s.*with --resume"):
        await watching


async def test_an_elastic_engine_without_restarts_is_missed_only_where_it_is_needed() -> None:
    pool, engines = pool_of(Client("a"), Client("b")), [Engine([]), Engine([], "engine 1")]
    watching, said = watch_elastic(pool, engines, least=1)
    engines[1].died.set()
    await turns(500)
    assert said[0].startswith("engine 0 died: killed; engine 1 is not started again: 1 of 2 engines")
    engines[0].died.set()
    with pytest.raises(JobError, match="engine 0 died"):
        await watching
