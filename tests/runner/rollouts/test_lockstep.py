"""Seats that ask in lockstep, whatever the order and the moment they ask in."""

import asyncio
from collections.abc import Sequence

import numpy as np

from rlrun.plugins.generation import Generation, Sampling
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.rollouts.lockstep import Barrier
from rlrun.runner.rollouts.sessions import empty_generation

LONGEST = 30.0
"""Seconds that no test takes: what would wait for ever fails then."""


def request(name: str) -> GenerateRequest:
    return GenerateRequest(name, np.zeros(1, np.int32), (1,), Sampling(1))


class RecordingEngines:
    """Engines that record which requests came together, and answer once `may_answer` is set."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        self.batches.append([one.id for one in requests])
        await self.may_answer.wait()
        return [[empty_generation("length")] for _ in requests]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_requests_go_together_in_the_order_of_the_seats() -> None:
    asked = RecordingEngines()
    asked.may_answer.set()
    barrier = Barrier(asked)
    slots = [barrier.add_slot((place,)) for place in (2, 0, 1)]
    first = [asyncio.create_task(slot.send(request(f"{slot.position[0]}"))) for slot in slots[:2]]
    await turns()
    assert not asked.batches, "one slot has not asked"
    await asyncio.gather(*first, slots[2].send(request("1")))
    assert asked.batches == [["0", "1", "2"]]


async def test_participants_that_leave_are_not_waited_for() -> None:
    asked = RecordingEngines()
    asked.may_answer.set()
    barrier = Barrier(asked)
    stays, leaves = barrier.add_slot((0,)), barrier.add_slot((1,))
    asking = asyncio.create_task(stays.send(request("a")))
    await turns()
    leaves.leave()
    await asyncio.wait_for(asking, LONGEST)
    assert asked.batches == [["a"]]


async def test_requests_made_during_a_batch_go_into_the_next_one() -> None:
    asked = RecordingEngines()
    barrier = Barrier(asked)
    slot = barrier.add_slot((0,))
    first = asyncio.create_task(slot.send(request("a")))
    await turns()
    second = asyncio.create_task(slot.send(request("b")))
    await turns()
    asked.may_answer.set()
    await asyncio.wait_for(asyncio.gather(first, second), LONGEST)
    assert asked.batches == [["a"], ["b"]]


async def test_closing_cancels_open_requests() -> None:
    asked = RecordingEngines()
    barrier = Barrier(asked)
    asking = asyncio.create_task(barrier.add_slot((0,)).send(request("a")))
    await turns()
    await asyncio.wait_for(barrier.close(), LONGEST)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}
