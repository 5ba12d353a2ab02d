"""Keeps a job's engines alive: one that dies, hangs or cannot be reached is killed, started again and given
the current weights, while the others go on.

    watch ──▶ lost ──▶ kill, start again (a budget, a pause that grows) ──▶ weights ──▶ asked again
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rlrun.runner.contracts.errors import EngineGone, JobError
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.host.background import cancel_all
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.host.repeated_crashes import Crashes

FIRST_PAUSE = 1.0
"""Seconds before the next start of an engine that did not come up; doubles each time."""
CAUSE_SECONDS = 5.0
"""How long whoever watches an engine has to say what it died of, once a connection to it broke."""


class Restartable(Protocol):
    """An engine's process (rlrun.runner.cluster.start_engines.EngineHandle)."""

    @property
    def name(self) -> str:
        """As messages call it: `engine 0`."""

    async def watch(self) -> None:
        """Return never; JobError as soon as it is gone or not well."""

    async def restart(self) -> EngineClient:
        """Kill what is left of it and start it again. JobError where it does not come up."""


class Budget:
    """Restarts that are left, of all engines of a job together."""

    def __init__(self, restarts: int) -> None:
        self.left = restarts


class Supervisor:
    """Watches every engine of a pool."""

    def __init__(
        self, pool: EnginePool, engines: Sequence[Restartable], budget: Budget, say: Callable[[str], None]
    ) -> None:
        """`budget` may be shared with others; `say` tells the user."""
        self._pool = pool
        self._engines = engines
        self._budget = budget
        self._say = say

    async def run(self) -> None:
        """Return never; JobError, the last failure, when no restart is left."""
        await gather_or_first_cause([self._keep(number) for number in range(len(self._engines))])

    async def _keep(self, number: int) -> None:
        engine, crashes, served = self._engines[number], Crashes(), 0
        while True:
            failure = await self._failure(number)
            since = time.monotonic()
            self._pool.lose(number)
            place = self._pool.version
            await self._mend(number, failure, crashes, served if place is None else place)
            served += 1
            self._say(f"{engine.name} is back after {time.monotonic() - since:.1f} s")

    async def _mend(self, number: int, failure: JobError, crashes: Crashes, place: int) -> None:
        """Start it again until it serves the current weights. `place` changes when the job makes progress."""
        engine, pause = self._engines[number], FIRST_PAUSE
        while self._budget.left:
            crashes.check(failure, place)
            self._budget.left -= 1
            self._say(f"{failure}; starting {engine.name} again ({self._budget.left} restarts left)")
            await self._pool.awake()
            try:
                return await self._pool.mend(number, await engine.restart())
            except JobError as error:
                failure = error
            await asyncio.sleep(pause)
            pause *= 2
        raise failure

    async def _failure(self, number: int) -> JobError:
        """Wait for what ends this engine."""
        engine = self._engines[number]
        watching = asyncio.ensure_future(engine.watch())
        lost = asyncio.ensure_future(self._pool.lost(number))
        try:
            await asyncio.wait([watching, lost], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([watching], timeout=CAUSE_SECONDS)
            if not watching.done():
                cause = self._pool.cause(number)
                return EngineGone(f"{engine.name}: {cause}" if cause else f"{engine.name} cannot be reached")
            error = watching.exception()
            if not isinstance(error, JobError):
                raise error or AssertionError("a watch ends with an error")
            return error
        finally:
            await cancel_all([watching, lost])
