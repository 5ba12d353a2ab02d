"""Deadlines of executions: a slow sample or a hung engine delays nothing but its own execution.

A deadline first aborts the open requests, which return the tokens made so far. An engine that ignores the
abort for GRACE_SECONDS is no longer waited for. Deadlines do not run while a request queues in front of the
engines, or while the engines are stopped (rlrun.runner.contracts.pausable_deadlines).
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from rlrun.plugins.generation import Generation
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.interfaces import Engines, RolloutContext
from rlrun.runner.host.background import cancel_all
from rlrun.runner.rollouts.sessions import OpenRequests, SendRequest, empty_generations

Result = TypeVar("Result")
GRACE_SECONDS = 5.0
"""Seconds that an engine may take to answer an aborted request with its tokens so far."""


async def run_with_deadline(
    policy: RolloutContext, execution: Coroutine[Any, Any, Result], requests: OpenRequests, seconds: float
) -> Result:
    """Returns the result of `execution`: one execution, or all executions of a prompt, that sends `requests`.

    After `seconds` the open requests are aborted, so that they return the tokens made so far. An engine that
    does not answer within GRACE_SECONDS is not waited for, and later requests return empty generations. So an
    execution can still return its earlier turns. It has GRACE_SECONDS to do so; then TimeoutError is raised.
    """
    task = asyncio.ensure_future(execution)
    try:
        async with policy.deadlines.timeout(seconds) as deadline:
            # `task` has not run yet, so none of its requests is sent without the deadline.
            requests.send_to_engines = _with_deadline(policy, requests.send_to_engines, seconds, deadline)
            return await asyncio.shield(task)
    except TimeoutError:
        if not deadline.expired():
            raise
        requests.is_late = True
        with suppress(TimeoutError):
            async with policy.deadlines.timeout(GRACE_SECONDS):
                await _abort(policy, requests)
                return await asyncio.shield(task)
        requests.cancel()
        with suppress(TimeoutError):
            async with policy.deadlines.timeout(GRACE_SECONDS):
                return await task
        raise TimeoutError(f"it took longer than rollout.request_timeout = {seconds:g} s") from None
    finally:
        await cancel_all([task])


def _with_deadline(
    policy: RolloutContext, send: SendRequest, seconds: float, execution_deadline: asyncio.Timeout
) -> SendRequest:
    """Returns `send` with a deadline for each request.

    A request that is not answered `seconds` after the engines took it returns its tokens so far with finish
    `abort`, or empty generations where the engine does not answer the abort. The execution's deadline is held
    while a request queues. The function raises EngineError as `send` does.
    """

    async def send_with_deadline(request: GenerateRequest) -> list[Generation]:
        answer = asyncio.ensure_future(send(request))
        try:
            with policy.pending.enter(len(request.seeds)) as admitted:
                if not admitted.done():
                    with policy.deadlines.held(execution_deadline):
                        events: list[asyncio.Future[Any]] = [answer, admitted]
                        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
                return await _answer_by_deadline(policy, request, answer, seconds)
        finally:
            answer.cancel()

    return send_with_deadline


async def _answer_by_deadline(
    policy: RolloutContext, request: GenerateRequest, answer: asyncio.Future[list[Generation]], seconds: float
) -> list[Generation]:
    try:
        async with policy.deadlines.timeout(seconds) as deadline:
            return await asyncio.shield(answer)
    except TimeoutError:
        if not deadline.expired():
            raise
        with suppress(TimeoutError):
            async with policy.deadlines.timeout(GRACE_SECONDS):
                await policy.engines.abort(request)
                return await answer
        return empty_generations(request)


async def _abort(policy: RolloutContext, requests: OpenRequests) -> None:
    with suppress(EngineError):  # an engine that died has nothing to abort
        await asyncio.gather(*(policy.engines.abort(request) for request in requests.unanswered))


async def abort_all_requests(engines: Engines) -> None:
    """Aborts every request of all engines, and waits at most GRACE_SECONDS for them to confirm.

    An engine that does not confirm has died or hangs; its supervisor restarts it.
    """
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(GRACE_SECONDS):
            await engines.abort_all()
