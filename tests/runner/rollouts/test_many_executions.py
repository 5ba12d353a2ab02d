"""Many executions at once, of which one in ten is killed or hangs: the others end with their own tokens."""

import asyncio
from collections import defaultdict

import numpy as np

from rlrun.plugins.failures import Failure, InfrastructureError
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Group
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.host.background import cancel_all
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.group_producer import GroupProducer
from rlrun.runner.rollouts.tally import Tally
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Engines, policy, prompt

EXECUTIONS, TURNS = 200, 3
KILLED, HUNG = 3, 13
"""The executions that are lost in their second turn, of each twenty."""


class RememberingEngines(Engines):
    """Answers tokens that depend on the seed, and remembers them by prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: defaultdict[int, list[int]] = defaultdict(list)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        await asyncio.sleep(0)
        [generation] = await super().generate(request)
        tokens = np.random.default_rng(request.seeds[0]).integers(1, 1000, 1).astype(np.int32)
        self.answers[request.prompt_index] += tokens.tolist()
        return [Generation(tokens, generation.log_probs, "stop", generation.versions)]


class Losing:
    """An environment of several turns that loses some of its executions."""

    async def run(self, session: Session) -> Trajectory:
        trajectory = Trajectory(session.prompt.tokens)
        for turn in range(TURNS):
            if turn == 1 and session.prompt.index % 20 == KILLED:
                raise InfrastructureError("the sandbox was killed", Failure.SANDBOX)
            if turn == 1 and session.prompt.index % 20 == HUNG:
                await asyncio.Event().wait()
            trajectory.add(await session.generate(trajectory.tokens()))
            trajectory.give([7, 7])
        return trajectory


async def test_lost_executions_cost_no_other_one_its_result_or_its_tokens() -> None:
    engines, tally = RememberingEngines(), Tally()
    spec = resolved_rollout(samples_per_prompt=1, max_response_tokens=64, request_timeout=3600.0)
    producer = GroupProducer(spec, policy(engines, rollout=Losing()), Filters([]))
    tasks = {
        index: asyncio.create_task(producer.produce(prompt(index), lambda: tally))
        for index in range(EXECUTIONS)
    }
    ended = {index: task for index, task in tasks.items() if index % 20 != HUNG}
    groups: list[Group | None] = await asyncio.gather(*ended.values())
    hung = [task for index, task in tasks.items() if index % 20 == HUNG]
    assert not any(task.done() for task in hung)
    await cancel_all(hung)
    for index, group in zip(ended, groups, strict=True):
        if index % 20 == KILLED:
            assert group is None
            continue
        assert group is not None
        [sample] = group.samples
        assert sample.id == f"{index}-0"
        assert sample.tokens[sample.loss_mask > 0].tolist() == engines.answers[index]
    assert tally.failures == {Failure.SANDBOX: EXECUTIONS // 20}
