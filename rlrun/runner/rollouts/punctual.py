"""A sample that takes too long costs its group that sample, and nothing more; nor does a hung engine."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from rlrun.plugins.generation import Generation
from rlrun.runner.background import cancel_all
from rlrun.runner.carriers import GenerateRequest
from rlrun.runner.errors import EngineError
from rlrun.runner.interfaces import Engines, Policy
from rlrun.runner.rollouts.sessions import Ask, PolicySession

Result = TypeVar("Result")
GRACE_SECONDS = 5.0
"""How long an engine may take to answer with what a late request has."""


def in_time(policy: Policy, ask: Ask, seconds: float, execution: asyncio.Timeout) -> Ask:
    """Returns `ask` with a deadline for each request, which is a part of the given execution."""

    async def ask_in_time(request: GenerateRequest) -> list[Generation]:
        return await generate_in_time(policy, ask, request, seconds, execution)

    return ask_in_time


async def generate_in_time(
    policy: Policy, ask: Ask, request: GenerateRequest, seconds: float, execution: asyncio.Timeout
) -> list[Generation]:
    """Returns the samples of a request, asked for by `ask`.

    Samples that are not finished `seconds` after engines took the request end there, their finish `abort`.
    The deadline of the execution does not run while the request queues. TimeoutError where the engine does
    not answer after the request's time either. Raises EngineError as the engines do.
    """
    asking = asyncio.ensure_future(ask(request))
    try:
        with policy.line.enter(len(request.seeds)) as taken:
            with policy.patience.held(execution):
                events: list[asyncio.Future[Any]] = [asking, taken]
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            return await _answer(policy, request, asking, seconds)
    finally:
        asking.cancel()


async def _answer(
    policy: Policy, request: GenerateRequest, asking: asyncio.Future[list[Generation]], seconds: float
) -> list[Generation]:
    try:
        async with policy.patience.timeout(seconds) as deadline:
            return await asyncio.shield(asking)
    except TimeoutError:
        if not deadline.expired():
            raise
        async with policy.patience.timeout(GRACE_SECONDS):
            await policy.engines.abort(request)
            return await asking


async def run_in_time(
    policy: Policy, run: Coroutine[Any, Any, Result], session: PolicySession, seconds: float
) -> Result:
    """Returns what one execution's `run` leaves.

    After `seconds` the requests of its session are aborted, which answers them with the tokens made so far;
    later requests are answered with nothing. It then has GRACE_SECONDS to return, so that a conversation of
    several turns keeps its tokens. TimeoutError where it does not return.
    """
    running = asyncio.ensure_future(run)
    try:
        async with policy.patience.timeout(seconds) as deadline:
            session.ask = in_time(policy, session.ask, seconds, deadline)  # before `running` gets its turn
            return await asyncio.shield(running)
    except TimeoutError:
        if not deadline.expired():
            raise
        session.late = True
        with suppress(TimeoutError):
            async with policy.patience.timeout(GRACE_SECONDS):
                for request in list(session.running.values()):
                    await policy.engines.abort(request)
                return await running
        raise TimeoutError(f"it took longer than rollout.request_timeout = {seconds} s") from None
    finally:
        await cancel_all([running])


async def abort_all(engines: Engines) -> None:
    """Have engines end all that runs. One that does not hear it is lost or hangs, which others see to."""
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(GRACE_SECONDS):
            await engines.abort_all()
