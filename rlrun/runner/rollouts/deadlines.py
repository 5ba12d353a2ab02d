"""A sample that takes too long costs its group that sample, and nothing more; nor does a hung engine."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from rlrun.plugins.generation import Generation
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.interfaces import Engines, RolloutContext
from rlrun.runner.host.background import cancel_all
from rlrun.runner.rollouts.sessions import Requests, SendRequest, nothing

Result = TypeVar("Result")
GRACE_SECONDS = 5.0
"""How long an engine may take to answer with what a late request has."""


def in_time(
    policy: RolloutContext, ask: SendRequest, seconds: float, execution: asyncio.Timeout
) -> SendRequest:
    """Returns `ask` with a deadline for each request, which is a part of the given execution."""

    async def ask_in_time(request: GenerateRequest) -> list[Generation]:
        return await generate_in_time(policy, ask, request, seconds, execution)

    return ask_in_time


async def generate_in_time(
    policy: RolloutContext,
    ask: SendRequest,
    request: GenerateRequest,
    seconds: float,
    execution: asyncio.Timeout,
) -> list[Generation]:
    """Returns the samples of a request, asked for by `ask`.

    Samples that are not finished `seconds` after engines took the request end there, their finish `abort`;
    without their tokens where the engine does not answer then either. The deadline of the execution does not
    run while the request queues. Raises EngineError as the engines do.
    """
    asking = asyncio.ensure_future(ask(request))
    try:
        with policy.pending.enter(len(request.seeds)) as taken:
            with policy.deadlines.held(execution):
                events: list[asyncio.Future[Any]] = [asking, taken]
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            return await _answer(policy, request, asking, seconds)
    finally:
        asking.cancel()


async def _answer(
    policy: RolloutContext, request: GenerateRequest, asking: asyncio.Future[list[Generation]], seconds: float
) -> list[Generation]:
    try:
        async with policy.deadlines.timeout(seconds) as deadline:
            return await asyncio.shield(asking)
    except TimeoutError:
        if not deadline.expired():
            raise
        with suppress(TimeoutError):
            async with policy.deadlines.timeout(GRACE_SECONDS):
                await policy.engines.abort(request)
                return await asking
        return [nothing("abort") for _ in request.seeds]


async def run_in_time(
    policy: RolloutContext, run: Coroutine[Any, Any, Result], requests: Requests, seconds: float
) -> Result:
    """Returns what `run` leaves: one execution, or all executions of a prompt, that makes these requests.

    After `seconds` the requests are aborted, which answers them with the tokens made so far; an engine that
    does not answer within GRACE_SECONDS is not waited for, and later requests are answered with nothing. So
    `run` can return the tokens of its earlier turns and of its finished executions. It has GRACE_SECONDS for
    that; TimeoutError where it does not return.
    """
    running = asyncio.ensure_future(run)
    try:
        async with policy.deadlines.timeout(seconds) as deadline:
            requests.ask = in_time(policy, requests.ask, seconds, deadline)  # before `running` gets its turn
            return await asyncio.shield(running)
    except TimeoutError:
        if not deadline.expired():
            raise
        requests.late = True
        with suppress(TimeoutError):
            async with policy.deadlines.timeout(GRACE_SECONDS):
                await _abort(policy, requests)
                return await asyncio.shield(running)
        requests.give_up()
        with suppress(TimeoutError):
            async with policy.deadlines.timeout(GRACE_SECONDS):
                return await running
        raise TimeoutError(f"it took longer than rollout.request_timeout = {seconds:g} s") from None
    finally:
        await cancel_all([running])


async def _abort(policy: RolloutContext, requests: Requests) -> None:
    with suppress(EngineError):  # an engine that is lost has nothing to abort
        await asyncio.gather(*(policy.engines.abort(request) for request in requests.unanswered))


async def abort_all(engines: Engines) -> None:
    """Have engines end all that runs. One that does not hear it is lost or hangs, which others see to."""
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(GRACE_SECONDS):
            await engines.abort_all()
