"""Executions that wait for room: neither too many at once, nor late because they waited, and fewer when the
engines' caches are full.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import numpy as np
import pytest

from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Status
from rlrun.runner.contracts.execution_limit import ExecutionLimit, Pressure, adapted_limit
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.settings import RolloutSettings
from tests.runner.loop_fakes import Engines, policy, prompt

NEVER = 3600.0


class CountingRollout:
    """Counts how many executions run at once; each goes through several turns of the event loop."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def run(self, session: Session) -> Trajectory:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(5):
            await asyncio.sleep(0)
        trajectory = Trajectory(session.prompt.tokens)
        trajectory.add(await session.generate(trajectory.prompt))
        self.running -= 1
        return trajectory


def settings(purpose: str, seconds: float = NEVER) -> RolloutSettings:
    return RolloutSettings(purpose, 2, Sampling(max_new_tokens=8), 100, 8, seconds)


@pytest.mark.parametrize(("limit", "most"), [(None, 24), (5, 5), (1, 1)])
async def test_training_and_evaluations_share_the_limit(limit: int | None, most: int) -> None:
    engines, rollout = Engines(), CountingRollout()
    asked = replace(policy(engines, rollout=rollout), limit=ExecutionLimit(limit))
    parts = [Executions(asked, settings(purpose)) for purpose in ("rollout", "eval-a")]
    groups = await asyncio.gather(
        *(part.run(prompt(index), engines.generate) for part in parts for index in range(6))
    )
    assert rollout.most == most
    assert all(one.status is not Status.FAILED for group in groups for [one] in group)


@pytest.mark.parametrize(("limit", "most"), [(None, 12), (5, 4), (1, 2)])
async def test_in_lockstep_whole_prompts_take_turns(limit: int | None, most: int) -> None:
    engines, rollout = Engines(), CountingRollout()
    asked = replace(policy(engines, rollout=rollout, deterministic=True), limit=ExecutionLimit(limit))
    prompts = [prompt(index) for index in range(6)]
    groups = await Executions(asked, settings("rollout")).run_batch(prompts, engines.generate_batch)
    assert rollout.most == most
    assert [len(group) for group in groups] == [2] * 6


async def test_an_execution_that_waits_for_room_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the event loop is set forward, past the deadline, while one of two executions waits."""
    loop = asyncio.get_running_loop()
    began, release = asyncio.Event(), asyncio.Event()

    class BlockedRollout(CountingRollout):
        async def run(self, session: Session) -> Trajectory:
            if session.number == 0:
                began.set()
                await release.wait()
            return await super().run(session)

    engines = Engines()
    asked = replace(policy(engines, rollout=BlockedRollout()), limit=ExecutionLimit(1))
    work = asyncio.create_task(
        Executions(asked, settings("rollout", seconds=1000.0)).run(prompt(0), engines.generate)
    )
    await began.wait()
    clock: Callable[[], float] = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + 999.0)
    release.set()
    [[first], [second]] = await work
    assert [first.status, second.status] == [Status.COMPLETED, Status.COMPLETED]


NO_LIMIT = sys.maxsize
RETRACTED = Pressure(answers=100, retractions=6)
QUEUED = Pressure(answers=100, present=100, waiting=11)
FREE = Pressure(answers=100, present=100)


@pytest.mark.parametrize(
    ("limit", "running", "pressure", "highest", "adapted"),
    [
        pytest.param(NO_LIMIT, 200, RETRACTED, NO_LIMIT, 150, id="samples are retracted"),
        pytest.param(NO_LIMIT, 200, QUEUED, NO_LIMIT, 150, id="samples wait for a cache"),
        pytest.param(150, 160, RETRACTED, NO_LIMIT, 112, id="again, while more still run"),
        pytest.param(1, 1, RETRACTED, 16, 1, id="one always runs"),
        pytest.param(112, 112, FREE, NO_LIMIT, 119, id="room again"),
        pytest.param(8, 8, FREE, 16, 9, id="by one at least"),
        pytest.param(16, 16, FREE, 16, 16, id="up to the highest"),
        pytest.param(112, 80, FREE, NO_LIMIT, 112, id="others hold them back"),
        pytest.param(NO_LIMIT, 200, FREE, NO_LIMIT, NO_LIMIT, id="no limit stays none"),
        pytest.param(100, 100, Pressure(100, 5), NO_LIMIT, 100, id="few are retracted"),
        pytest.param(100, 100, Pressure(100, 0, 100, 10), NO_LIMIT, 100, id="few wait"),
    ],
)
def test_the_limit_follows_the_pressure_on_the_caches(
    limit: int, running: int, pressure: Pressure, highest: int, adapted: int
) -> None:
    assert adapted_limit(limit, running, pressure, highest) == adapted


def answers(number: int, retractions: int) -> list[Generation]:
    none, numbers = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return [Generation(none, numbers, "stop", (), retractions=retractions) for _ in range(number)]


async def test_while_caches_are_full_fewer_executions_begin() -> None:
    limit = ExecutionLimit(8)
    running = [AsyncExitStack() for _ in range(8)]
    for execution in running:
        await execution.enter_async_context(limit.slot())
    assert limit.take() == {}
    limit.count(answers(32, retractions=1))
    assert limit.take() == {"execution_limit": 6}
    begun: list[int] = []

    async def execute(number: int) -> None:
        async with limit.slot():
            begun.append(number)

    waiting = [asyncio.create_task(execute(number)) for number in range(3)]
    await asyncio.sleep(0)
    for execution in running[:2]:
        await execution.aclose()
    await asyncio.sleep(0)
    assert begun == []
    waiting[0].cancel()
    for execution in running[2:]:
        await execution.aclose()
    await asyncio.wait(waiting)
    assert begun == [1, 2]


async def test_an_execution_that_is_cancelled_as_it_begins_leaves_its_room() -> None:
    limit = ExecutionLimit(1)

    async def execute() -> None:
        async with limit.slot():
            await asyncio.sleep(0)

    first = asyncio.create_task(execute())
    await asyncio.sleep(0)
    second = asyncio.create_task(execute())
    await asyncio.sleep(0)
    await asyncio.wait([first])
    second.cancel()  # it has been admitted, and has not run since
    await asyncio.wait([second])
    await execute()


async def test_the_answers_of_executions_are_what_adapts_the_limit() -> None:
    class FullEngines(Engines):
        async def generate(self, request):  # type: ignore[no-untyped-def]
            return [replace(one, retractions=1) for one in await super().generate(request)]

    engines, rollout = FullEngines(), CountingRollout()
    limit = ExecutionLimit()
    asked = replace(policy(engines, rollout=rollout), limit=limit)
    executions = Executions(asked, settings("rollout"))
    await asyncio.gather(*(executions.run(prompt(index), engines.generate) for index in range(40)))
    assert limit.take()["execution_limit"] <= 60
    before, rollout.most = rollout.most, 0
    await asyncio.gather(*(executions.run(prompt(index), engines.generate) for index in range(40)))
    assert rollout.most < before == 80
