"""Runs the rollout plugin, which sends requests to the policy through sessions.

prompt ──▶ n sessions ──▶ rollout plugin ──▶ n × trajectories
              │  ▲
              ▼  │  tokens, sampling ▸ request ▸ engines ▸ generation
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from rlrun.plugins.failures import Failure, failure_of
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.protocols import Executed
from rlrun.plugins.types import Prompt, Status
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.contracts.placeholders import collapse
from rlrun.runner.contracts.seeds import sample_seed
from rlrun.runner.host.background import cancel_all
from rlrun.runner.rollouts.deadlines import run_with_deadline
from rlrun.runner.rollouts.lockstep import Barrier, BarrierSlot, SendBatch
from rlrun.runner.rollouts.sessions import (
    OpenRequests,
    PolicyGroup,
    PolicySession,
    SendRequest,
)
from rlrun.runner.rollouts.settings import RolloutSettings

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class Executions:
    """Runs the executions of prompts, each with a deadline; a failed execution becomes a failed sample.

    After a failure of the infrastructure it runs again first, with other draws of the policy.
    """

    def __init__(self, policy: RolloutContext, settings: RolloutSettings) -> None:
        self._policy = policy
        self._settings = settings
        self._is_grouped = hasattr(policy.rollout, "run_group")
        self._has_warned = False

    @property
    def first_number(self) -> int:
        """The number of a prompt's first execution in its group."""
        return self._settings.first_number

    async def run(self, prompt: Prompt, send: SendRequest) -> list[list[Trajectory]]:
        """Returns the trajectories of each execution of a prompt; a failed one has one failed trajectory.

        A plugin with `run_group` runs all executions of a prompt at once. Then TimeoutError and EngineError
        are raised, because they concern the whole group.
        """
        seconds, group = self._settings.timeout, self._policy_group(prompt, send)
        if self._is_grouped:
            try:
                return await run_with_deadline(self._policy, self._run_group(group), group.requests, seconds)
            except (TimeoutError, EngineError) as error:
                self._log_failure(f"all executions of prompt {prompt.index} failed and are left out", error)
                raise
        return await asyncio.gather(
            *(self._run_session(session, send, seconds) for session in group.sessions)
        )

    async def run_batch(
        self, prompts: Sequence[Prompt], send_batch: SendBatch
    ) -> list[list[list[Trajectory]]]:
        """Returns what `run` returns for each prompt, with all executions in lockstep for determinism.

        Where fewer executions may run at once, as many prompts as have room take turns.

        Single executions have no deadline here; errors of the engines are raised.
        """
        size = self._policy.limit.groups(len(prompts), self._settings.samples) or 1
        results: list[list[list[Trajectory]]] = []
        for first in range(0, len(prompts), size):
            results += await self._run_in_lockstep(prompts[first : first + size], send_batch)
        return results

    async def _run_in_lockstep(
        self, prompts: Sequence[Prompt], send_batch: SendBatch
    ) -> list[list[list[Trajectory]]]:
        barrier = Barrier(send_batch)
        tasks = [asyncio.create_task(execution) for execution in self._in_slots(prompts, barrier)]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            await cancel_all(tasks)
            await barrier.close()
        if barrier.error is not None:
            raise barrier.error
        if self._is_grouped:
            return results
        executions = iter(results)
        return [[next(executions) for _ in range(self._settings.samples_of(prompt))] for prompt in prompts]

    def failed(self, prompt: Prompt, error: Exception) -> list[list[Trajectory]]:
        """Returns failed trajectories for all executions of a prompt."""
        return [self._failed(prompt, number, error) for number in self._numbers(prompt)]

    def _in_slots(self, prompts: Sequence[Prompt], barrier: Barrier) -> list[Coroutine[Any, Any, Any]]:
        """Gives every execution a slot of the barrier, or every prompt where its executions run together."""
        if self._is_grouped:
            slots = [barrier.add_slot((position,)) for position in range(len(prompts))]
            return [
                _run_in_slot(slot, self._run_group(self._policy_group(prompt, slot.send)))
                for prompt, slot in zip(prompts, slots, strict=True)
            ]
        executions: list[Coroutine[Any, Any, Any]] = []
        for position, prompt in enumerate(prompts):
            slots = [barrier.add_slot((position, number)) for number in self._numbers(prompt)]
            sessions = self._policy_group(prompt, slots[0].send).sessions
            executions += [
                _run_in_slot(slot, self._run_session(session, slot.send, None))
                for slot, session in zip(slots, sessions, strict=True)
            ]
        return executions

    async def _run_group(self, group: PolicyGroup) -> list[list[Trajectory]]:
        prompt, samples = group.prompt, self._settings.samples_of(group.prompt)
        numbers = [self._policy.environment.begin() for _ in range(samples)]
        executions: list[list[Trajectory]] = [[] for _ in range(samples)]
        try:
            results = await self._policy.rollout.run_group(group)
            if len(results) != samples:
                raise ValueError(f"the rollout returned {len(results)} results for {samples} executions")
        except (TimeoutError, JobError):
            raise
        except Exception as error:  # the boundary to other people's rollout plugins
            executions = self.failed(prompt, error)
        else:
            executions = [
                self._checked(result, prompt, number)
                for number, result in zip(self._numbers(prompt), results, strict=True)
            ]
        finally:
            for number, trajectories in zip(numbers, executions, strict=True):
                self._record(number, trajectories)
        return executions

    async def _run_session(
        self, session: PolicySession, send: SendRequest, seconds: float | None
    ) -> list[Trajectory]:
        """Runs one execution, with a deadline for each try unless `seconds` is None.

        Errors fail only this execution. JobError is raised if the environment fails as a whole.
        """
        environment, trajectories, attempt = self._policy.environment, None, 0
        number = environment.begin()
        try:
            while trajectories is None:
                session.requests = OpenRequests(partial(self._send, send))
                trajectories = await self._try(session, seconds, attempt)
                attempt += 1
        finally:
            self._record(number, trajectories or [])
        if attempt > 1:
            for trajectory in trajectories:
                trajectory.info = {**trajectory.info, "retries": attempt - 1}
        return trajectories

    async def _try(
        self, session: PolicySession, seconds: float | None, attempt: int
    ) -> list[Trajectory] | None:
        """Returns the trajectories of an execution; None, after a pause, if it runs again."""
        try:
            result = await self._run_once(session, seconds)
        except Exception as error:  # the boundary to other people's rollout plugins, and to failing engines
            pause = self._policy.environment.pause_before_retry(_type_of(error), attempt)
            if pause is None:
                return self._failed(session.prompt, session.number, error)
            self._log_failure(f"execution {session.id} failed and runs again in {pause:.0f} s", error)
        else:
            return self._checked(result, session.prompt, session.number)
        await asyncio.sleep(pause)
        return None

    async def _run_once(self, session: PolicySession, seconds: float | None) -> Executed:
        # the deadline begins when there is room; executions in lockstep must all run
        async with nullcontext() if seconds is None else self._policy.limit.slot():
            execution: Coroutine[Any, Any, Executed] = self._policy.rollout.run(session)
            if seconds is not None:
                execution = run_with_deadline(self._policy, execution, session.requests, seconds)
            return await execution

    async def _send(self, send: SendRequest, request: GenerateRequest) -> list[Generation]:
        generations = await send(request)
        self._policy.limit.count(generations)
        return generations

    def _record(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        """Records how an execution ended; without trajectories it was cancelled. May raise JobError."""
        failure = trajectories[-1].failure_type if trajectories else None
        reason = trajectories[-1].failure if trajectories else None
        self._policy.environment.record(number, failure, reason or "")

    def _policy_group(self, prompt: Prompt, send: SendRequest) -> PolicyGroup:
        seeds = [
            sample_seed(self._policy.seed, self._settings.purpose, prompt.index, number)
            for number in self._numbers(prompt)
        ]
        return PolicyGroup(self._policy, self._settings, prompt, seeds, send)

    def _numbers(self, prompt: Prompt) -> range:
        """Returns the numbers of a prompt's executions in their group."""
        return range(self.first_number, self.first_number + self._settings.samples_of(prompt))

    def _checked(self, result: Executed, prompt: Prompt, number: int) -> list[Trajectory]:
        """Returns an execution's trajectories as a list, or a failed trajectory where a check fails."""
        trajectories = [result] if isinstance(result, Trajectory) else result
        try:
            if not trajectories:
                raise ValueError("the rollout returned nothing")
            for trajectory in trajectories:
                self._check(trajectory, prompt)
        except (ValueError, TypeError) as error:
            return self._failed(prompt, number, error)
        return list(trajectories)

    def _check(self, trajectory: object, prompt: Prompt) -> None:
        if not isinstance(trajectory, Trajectory):
            raise ValueError(f"the rollout returned {trajectory!r}, which is not a Trajectory")
        if not len(trajectory.prompt) and len(prompt.tokens):  # a model over messages has no tokens
            raise ValueError("the rollout returned a trajectory without a prompt")
        try:
            trajectory.check()
        except (ValueError, TypeError) as error:
            raise ValueError(f"the rollout {type(self._policy.rollout).__name__} returned {error}") from None
        images = prompt.images if trajectory.prompt_images is None else trajectory.prompt_images
        collapse(trajectory.prompt, images)  # raises ValueError for placeholders of other images
        limit = self._settings.max_sample_tokens
        # Tokens after the last turn (a tool's result that got no answer) are not part of the sample.
        if len(trajectory) > limit and trajectory.sample_length() > limit:
            raise ValueError(f"a trajectory has {trajectory.sample_length()} tokens; the maximum is {limit}")

    def _failed(self, prompt: Prompt, number: int, error: Exception) -> list[Trajectory]:
        """Returns a failed trajectory with the reason."""
        reason = self._log_failure(f"execution {prompt.index}-{number} failed and is left out", error)
        return [Trajectory(prompt.tokens, status=Status.FAILED, failure=reason, failure_type=_type_of(error))]

    def _log_failure(self, message: str, error: Exception) -> str:
        """Logs a failure and returns its reason; the console shows only the first one, the log has all."""
        reason = f"{type(error).__name__}: {error}"
        level, self._has_warned = (logging.INFO if self._has_warned else logging.WARNING), True
        logger.log(level, "%s: %s", message, reason)
        logger.info("traceback of this failure", exc_info=error)
        return reason


def _type_of(error: Exception) -> Failure:
    return Failure.ENGINE if isinstance(error, EngineError) else failure_of(error)


async def _run_in_slot(slot: BarrierSlot, execution: Coroutine[Any, Any, Result]) -> Result:
    try:
        return await execution
    finally:
        slot.leave()
