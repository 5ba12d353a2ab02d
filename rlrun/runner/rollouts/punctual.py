"""A sample that takes too long costs its group that sample, and nothing more; nor does a hung engine."""

import asyncio
from contextlib import suppress

from rlrun.plugins.generation import Generation
from rlrun.runner.carriers import GenerateRequest
from rlrun.runner.errors import EngineError
from rlrun.runner.interfaces import Engines, Policy

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


async def abort_all(engines: Engines) -> None:
    """Have engines end all that runs. One that does not hear it is lost or hangs, which others see to."""
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(GRACE_SECONDS):
            await engines.abort_all()
