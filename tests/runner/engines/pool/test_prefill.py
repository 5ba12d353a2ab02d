"""Prefill and decode servers in one pool: which calls each of them gets, and what happens when one fails."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Sampling
from rlrun.runner.contracts.errors import BadAnswer, EngineError, EngineGone
from rlrun.runner.engines.client.rooms import Rooms, Serving
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from tests.waiting import PATIENCE

Caches = defaultdict[int, asyncio.Event]
"""Set for the rooms in which there are caches."""


class Server:
    """A prefill or a decode server, whose samples need the caches that a prefill server was asked for."""

    def __init__(self, serving: Serving, caches: Caches) -> None:
        self.url = self.name = serving.bootstrap_host or "decode"
        self.serving = serving
        self.caches = caches
        self.requests: list[str] = []
        self.aborted: list[str] = []
        self.version = 0
        self.failures: list[EngineError] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def generate_batch(
        self, requests: Sequence[GenerateRequest], rooms: Rooms
    ) -> list[list[Generation]]:
        assert self.serving.role == "decode"
        await self._begin(requests)
        for room in rooms.numbers:
            await self.caches[room].wait()
        tokens = np.array([rooms.port], np.int32)
        answer = Generation(tokens, np.zeros(1, np.float32), "stop", ())
        return [[answer for _ in request.seeds] for request in requests]

    async def prefill(self, requests: Sequence[GenerateRequest], rooms: Rooms) -> None:
        assert self.serving.role == "prefill"
        await self._begin(requests)
        for room in rooms.numbers:
            self.caches[room].set()

    async def abort(self, request: GenerateRequest) -> None:
        self.aborted.append(request.id)

    async def update_weights(self, update: FolderWeights) -> int:
        self.version = update.version
        return self.version

    async def close(self) -> None:
        pass

    async def _begin(self, requests: Sequence[GenerateRequest]) -> None:
        self.requests += [request.id for request in requests]
        await self.hold.wait()
        if self.failures:
            raise self.failures.pop()


def request(name: str, session: str = "", samples: int = 2) -> GenerateRequest:
    return GenerateRequest(name, np.ones(3, np.int32), tuple(range(samples)), Sampling(1), session=session)


def servers(prefill: int, decode: int) -> tuple[list[Server], list[Server]]:
    caches: Caches = defaultdict(asyncio.Event)
    first = [Server(Serving("prefill", f"p{number}", 9000 + number), caches) for number in range(prefill)]
    return first, [Server(Serving("decode"), caches) for _ in range(decode)]


def pool_of(*clients: Server, supervised: bool = True) -> EnginePool:
    return EnginePool(clients, supervised=supervised)  # type: ignore[arg-type]


async def test_every_request_goes_to_one_server_of_each_role_and_the_answer_is_the_decode_servers() -> None:
    [first, second], [decode] = servers(2, 1)
    pool = pool_of(first, decode, second)
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*(pool.generate(request(str(number))) for number in range(4)))
    assert decode.requests == ["0", "1", "2", "3"]
    assert sorted(first.requests + second.requests) == ["0", "1", "2", "3"]
    assert len(first.requests) == len(second.requests) == 2
    assert all(len(generations) == 2 for generations in answers)
    assert {int(generation.tokens[0]) for one in answers for generation in one} == {9000, 9001}
    assert [slot.load for slot in pool.slots] == [0, 0, 0]


async def test_the_turns_of_a_session_are_prefilled_where_its_cache_is() -> None:
    prefill, [decode] = servers(2, 1)
    pool = pool_of(*prefill, decode)
    for turn in range(3):
        await pool.generate(request(f"a{turn}", "0/a"))
    assert sorted(len(server.requests) for server in prefill) == [0, 3]


async def test_a_prefill_server_that_is_gone_is_replaced_by_another_and_its_request_is_aborted() -> None:
    [dead, other], [decode] = servers(2, 1)
    pool = pool_of(dead, other, decode)
    dead.failures = [EngineGone("p0 broke")]
    async with asyncio.timeout(PATIENCE):
        await pool.generate(request("a"))
    assert (dead.requests, other.requests) == (["a"], ["a"])
    assert decode.aborted == ["a"]
    assert [slot.up.is_set() for slot in pool.slots] == [False, True, True]


async def test_requests_wait_for_the_last_prefill_server_to_come_back() -> None:
    [dead], [decode] = servers(1, 1)
    pool = pool_of(dead, decode)
    dead.failures = [EngineGone("p0 broke")]
    waiting = asyncio.ensure_future(pool.generate(request("a")))
    async with asyncio.timeout(PATIENCE):
        await pool.wait_until_down(0)
    assert not waiting.done()
    [again], _ = servers(1, 0)
    again.caches = decode.caches
    await pool.readmit(0, again)  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE):
        assert len(await waiting) == 2
    assert again.requests == ["a"]


async def test_a_decode_server_that_is_gone_ends_the_call_of_its_prefill_server() -> None:
    [prefill], [dead, other] = servers(1, 2)
    pool = pool_of(prefill, dead, other)
    dead.failures = [EngineGone("decode broke")]
    prefill.hold.clear()
    waiting = asyncio.ensure_future(pool.generate(request("a")))
    async with asyncio.timeout(PATIENCE):
        await pool.wait_until_down(1)
        prefill.hold.set()
        assert len(await waiting) == 2
    assert prefill.requests == ["a", "a"]
    assert prefill.aborted == ["a"]
    assert other.requests == ["a"]


async def test_without_a_supervisor_a_lost_prefill_server_is_an_error() -> None:
    [dead], [decode] = servers(1, 1)
    dead.failures = [EngineGone("p0 broke")]
    with pytest.raises(EngineGone, match="p0 broke"):
        await pool_of(dead, decode, supervised=False).generate(request("a"))


async def test_a_transfer_that_fails_is_tried_again() -> None:
    [prefill], decode = servers(1, 2)
    pool = pool_of(prefill, *decode)
    prefill.failures = [BadAnswer("p0 answered 500: the transfer failed")]
    async with asyncio.timeout(PATIENCE):
        assert len(await pool.generate(request("a"))) == 2
    assert pool.take_bad_answers() == 1
    assert sorted(len(server.requests) for server in decode) == [1, 1]


async def test_a_batch_is_divided_among_the_servers_that_generate() -> None:
    [prefill], decode = servers(1, 2)
    pool = pool_of(prefill, *decode)
    answers = await pool.generate_batch([request(str(number)) for number in range(4)])
    assert len(answers) == 4
    assert [server.requests for server in decode] == [["0", "1"], ["2", "3"]]
    assert sorted(prefill.requests) == ["0", "1", "2", "3"]


async def test_servers_of_both_roles_get_new_weights() -> None:
    [prefill], [decode] = servers(1, 1)
    assert await pool_of(prefill, decode).update_weights(FolderWeights("f", 8, 3)) == 3
    assert (prefill.version, decode.version) == (3, 3)


def test_rooms_have_an_entry_for_each_sample() -> None:
    rooms = Serving("prefill", "10.0.0.4", 34001).new_rooms(2)
    assert rooms.fields["bootstrap_host"] == ["10.0.0.4", "10.0.0.4"]
    assert rooms.fields["bootstrap_port"] == [34001, 34001]
    assert len(set(rooms.fields["bootstrap_room"])) == 2
    assert all(0 <= room < 1 << 63 for room in rooms.numbers)
