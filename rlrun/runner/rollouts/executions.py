"""Prompts handed to the rollout plugin, which asks the policy through sessions.

prompt ──▶ n sessions ──▶ rollout plugin ──▶ n × trajectories
              │  ▲
              ▼  │  tokens, sampling ▸ request ▸ engines ▸ generation
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.protocols import Executed
from rlrun.plugins.types import Prompt, Status
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.contracts.seeds import sample_seed
from rlrun.runner.host.background import cancel_all
from rlrun.runner.rollouts.deadlines import run_in_time
from rlrun.runner.rollouts.lockstep import Barrier, BarrierSlot, SendBatch
from rlrun.runner.rollouts.sessions import PolicyGroup, PolicySession, Requests, RolloutSettings, SendRequest

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class Executions:
    """Runs the rollout plugin."""

    def __init__(self, policy: RolloutContext, wanted: RolloutSettings) -> None:
        self._policy = policy
        self._wanted = wanted
        self._grouped = hasattr(policy.rollout, "run_group")
        self._told = False

    async def of(self, prompt: Prompt, ask: SendRequest) -> list[list[Trajectory]]:
        """What each execution of a prompt leaves; one that went wrong leaves a failed trajectory.

        Where executions run together, TimeoutError and what the engines raise are the caller's.
        """
        seconds, group = self._wanted.timeout, self._group(prompt, ask)
        if self._grouped:
            try:
                return await run_in_time(self._policy, self._together(group), group.requests, seconds)
            except (TimeoutError, EngineError) as error:
                self._tell(f"all executions of prompt {prompt.index} failed, and are left out", error)
                raise
        for session in group.sessions:
            session.requests = Requests(ask)
        return await asyncio.gather(*(self._alone(session, seconds) for session in group.sessions))

    async def wave(self, prompts: Sequence[Prompt], ask_all: SendBatch) -> list[list[list[Trajectory]]]:
        """`of` for many prompts in lockstep, so that answers do not depend on timing.

        Nothing has a deadline of its own here; what the engines raise is the caller's.
        """
        barrier = Barrier(ask_all)
        tasks = [asyncio.create_task(run) for run in self._seated(prompts, barrier)]
        try:
            done = await asyncio.gather(*tasks)
        finally:
            await cancel_all(tasks)
            await barrier.close()
        if barrier.error is not None:
            raise barrier.error
        if self._grouped:
            return done
        flat = iter(done)
        return [[next(flat) for _ in range(self._wanted.samples)] for _ in prompts]

    def failed(self, prompt: Prompt, error: Exception) -> list[list[Trajectory]]:
        """Returns what a prompt leaves of which all executions failed."""
        return [self._failed(prompt, number, error) for number in range(self._wanted.samples)]

    def _seated(self, prompts: Sequence[Prompt], barrier: Barrier) -> list[Coroutine[Any, Any, Any]]:
        """Every execution of every prompt, or every prompt where its executions run together, in a seat."""
        if self._grouped:
            seats = [barrier.seat((place,)) for place in range(len(prompts))]
            return [
                _leaving(seat, self._together(self._group(prompt, seat.ask)))
                for prompt, seat in zip(prompts, seats, strict=True)
            ]
        runs: list[Coroutine[Any, Any, Any]] = []
        for place, prompt in enumerate(prompts):
            own = [barrier.seat((place, number)) for number in range(self._wanted.samples)]
            sessions = self._group(prompt, own[0].ask).sessions
            for seat, session in zip(own, sessions, strict=True):
                session.requests = Requests(seat.ask)
                runs.append(_leaving(seat, self._alone(session, None)))
        return runs

    async def _together(self, group: PolicyGroup) -> list[list[Trajectory]]:
        prompt, samples = group.prompt, self._wanted.samples
        try:
            left = await self._policy.rollout.run_group(group)
            if len(left) != samples:
                raise ValueError(f"{len(left)} results for {samples} executions")
        except (TimeoutError, JobError):
            raise
        except Exception as error:  # the boundary to other people's rollouts
            return self.failed(prompt, error)
        return [self._checked(one, prompt, number) for number, one in enumerate(left)]

    async def _alone(self, session: PolicySession, seconds: float | None) -> list[Trajectory]:
        """One execution; whatever goes wrong is its own failure."""
        try:
            run = self._policy.rollout.run(session)
            left = await (
                run if seconds is None else run_in_time(self._policy, run, session.requests, seconds)
            )
        except Exception as error:  # the boundary to other people's rollouts, and to engines that refuse
            return self._failed(session.prompt, session.number, error)
        return self._checked(left, session.prompt, session.number)

    def _group(self, prompt: Prompt, ask: SendRequest) -> PolicyGroup:
        seeds = [
            sample_seed(self._policy.seed, self._wanted.purpose, prompt.index, number)
            for number in range(self._wanted.samples)
        ]
        return PolicyGroup(self._policy.tokenizer, self._wanted, prompt, seeds, ask)

    def _checked(self, left: Executed, prompt: Prompt, number: int) -> list[Trajectory]:
        """What an execution left, as a list; a failed trajectory where it left something else."""
        trajectories = [left] if isinstance(left, Trajectory) else left
        try:
            if not trajectories:
                raise ValueError("the rollout returned nothing")
            for one in trajectories:
                self._check(one)
        except (ValueError, TypeError) as error:
            return self._failed(prompt, number, error)
        return list(trajectories)

    def _check(self, one: object) -> None:
        if not isinstance(one, Trajectory):
            raise ValueError(f"the rollout returned {one!r}, which is no Trajectory")
        if not len(one.prompt):
            raise ValueError("the rollout returned a trajectory without a prompt")
        longest = self._wanted.max_tokens
        # What was given last and went unanswered is no part of the sample.
        if len(one) > longest and one.sample_length() > longest:
            raise ValueError(f"a trajectory has {one.sample_length()} tokens, at most {longest} may be")

    def _failed(self, prompt: Prompt, number: int, error: Exception) -> list[Trajectory]:
        """Returns a trajectory that says why there is no answer."""
        why = self._tell(f"execution {prompt.index}-{number} failed, and is left out", error)
        return [Trajectory(prompt.tokens, status=Status.FAILED, failure=why)]

    def _tell(self, what: str, error: Exception) -> str:
        """Returns the reason of a failure. The console shows the first one, the log has all of them."""
        why = f"{type(error).__name__}: {error}"
        level, self._told = (logging.INFO if self._told else logging.WARNING), True
        logger.log(level, "%s: %s", what, why)
        logger.info("its trace", exc_info=error)
        return why


async def _leaving(seat: BarrierSlot, run: Coroutine[Any, Any, Result]) -> Result:
    try:
        return await run
    finally:
        seat.leave()
