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
from rlrun.runner.rollouts.sessions import PolicySession

Result = TypeVar("Result")
GRACE_SECONDS = 5.0
"""How long an engine may take to answer with what a late request has."""


async def generate_in_time(policy: Policy, request: GenerateRequest, seconds: float) -> list[Generation]:
    """The samples of a request; those that are not finished after `seconds` end there, their finish `abort`.

    TimeoutError where the engine does not answer then either. EngineError as the engines raise it.
    """
    asking = asyncio.ensure_future(policy.engines.generate(request))
    try:
        async with policy.timeout(seconds) as deadline:
            return await asyncio.shield(asking)
    except TimeoutError:
        if not deadline.expired():
            raise
        async with policy.timeout(GRACE_SECONDS):
            await policy.engines.abort(request)
            return await asking
    finally:
        asking.cancel()


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
        async with policy.timeout(seconds) as deadline:
            return await asyncio.shield(running)
    except TimeoutError:
        if not deadline.expired():
            raise
        session.late = True
        with suppress(TimeoutError):
            async with policy.timeout(GRACE_SECONDS):
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
