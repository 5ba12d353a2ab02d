"""A request's time begins when engines take it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Status
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.pending_requests import PendingRequests
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.settings import RolloutSettings
from tests.runner.loop_fakes import Engines, policy, prompt

SECONDS = 0.3


class OneAtATime(Engines):
    """Works on one request after the other; requests of `stuck` prompts run until they are aborted."""

    def __init__(self, stuck: Sequence[int]) -> None:
        super().__init__()
        self._stuck = stuck
        self._free = asyncio.Lock()
        self._aborted: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        aborted = self._aborted.setdefault(request.id, asyncio.Event())
        async with self._free:
            answers = await super().generate(request)
            if int(request.id.split("-")[1]) in self._stuck:
                await aborted.wait()
        return [replace(one, finish="abort") if aborted.is_set() else one for one in answers]

    async def abort(self, request: GenerateRequest) -> None:
        self._aborted[request.id].set()


class Once:
    async def run(self, session: Session) -> Trajectory:
        trajectory = Trajectory(session.prompt.tokens)
        trajectory.add(await session.generate(trajectory.prompt))
        return trajectory


async def test_time_in_the_queue_of_an_engine_does_not_count() -> None:
    engines = OneAtATime(stuck=(0, 1))
    asked = replace(policy(engines, rollout=Once()), pending=PendingRequests(1))

    executions = Executions(asked, RolloutSettings("rollout", 1, Sampling(max_new_tokens=8), 100, 8, SECONDS))
    left = await asyncio.gather(*(executions.run(prompt(index), engines.generate) for index in range(4)))
    late = [one.status in (Status.ABORTED, Status.FAILED) for [[one]] in left]
    assert late == [True, True, False, False]
