"""Executions that wait for room: neither too many at once, nor late because they waited."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from rlrun.plugins.generation import Sampling, Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Status
from rlrun.runner.contracts.execution_limit import ExecutionLimit
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
