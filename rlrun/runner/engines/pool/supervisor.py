"""Keeps a pool's engines alive: one that dies, hangs or cannot be reached is killed, started again and given
the current weights, while the other engines keep working.

    watch ──▶ lost ──▶ kill and restart (limited by a budget, with growing pauses) ──▶ weights ──▶ readmitted
                └── elastic, and its node is lost: the engine is away until the cluster has room for it
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rlrun.runner.contracts.errors import EngineGone, JobError, NodeLost
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.elastic import ElasticEngines
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.host.background import cancel_all
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.host.repeated_crashes import Crashes

FIRST_PAUSE = 1.0
"""Seconds before an engine that did not come up is started again; doubles each time."""
CAUSE_SECONDS = 5.0
"""After a connection to an engine broke, how long to wait for its watch to report what it died of."""


class Restartable(Protocol):
    """An engine's process (rlrun.runner.cluster.start_engines.EngineHandle)."""

    @property
    def name(self) -> str:
        """Its name in messages: `engine 0`."""

    async def watch(self) -> None:
        """Never returns; raises JobError as soon as the engine is gone or unhealthy."""

    async def restart(self) -> EngineClient:
        """Kills what remains of the engine and starts it again. Raises JobError if it does not come up."""


class RestartBudget:
    """The remaining restarts of all engines of a job together."""

    def __init__(self, restarts: int) -> None:
        self.remaining = restarts


class Supervisor:
    """Watches and restarts every engine of a pool."""

    def __init__(
        self,
        pool: EnginePool,
        engines: Sequence[Restartable],
        budget: RestartBudget,
        say: Callable[[str], None],
        elastic: ElasticEngines | None = None,
    ) -> None:
        """`budget`: may be shared with other supervisors. `say`: prints a message for the user.
        `elastic`: the same engines, if the job can go on without some of them.
        """
        self._pool = pool
        self._engines = engines
        self._budget = budget
        self._say = say
        self._elastic = elastic

    async def run(self) -> None:
        """Never returns; raises the last failure as JobError when the budget is used up."""
        work = [self._supervise(number) for number in range(len(self._engines))]
        if self._elastic is not None:
            slots = enumerate(self._pool.slots)
            self._elastic.begin({number for number, slot in slots if not slot.has_joined})
            work.append(self._elastic.watch())
        await gather_or_first_cause(work)

    async def _supervise(self, number: int) -> None:
        engine, crashes, restarts = self._engines[number], Crashes(), 0
        while True:
            has_joined = self._pool.slots[number].has_joined
            failure = await self._wait_for_failure(number) if has_joined else None
            since = time.monotonic()
            self._pool.mark_down(number)
            version = self._pool.version
            progress = restarts if version is None else version
            try:
                await self._restart(number, failure, crashes, progress)
            except JobError as error:
                if self._elastic is None:
                    raise
                self._elastic.end(number, error)
                return
            restarts += 1
            came = "is back" if has_joined else "has joined"
            self._say(f"{engine.name} {came} after {time.monotonic() - since:.1f} s")

    async def _restart(self, number: int, failure: JobError | None, crashes: Crashes, progress: int) -> None:
        """Restarts an engine until it serves the current weights.

        `failure`: None for an elastic engine that has not joined yet. `progress`: a number that changes when
        the job makes progress. Two crashes without progress in between are not worth a third start.
        """
        engine, pause = self._engines[number], FIRST_PAUSE
        while True:
            was_away = self._elastic is not None and await self._elastic.wait_for_room(number, failure)
            if failure is not None and not was_away:
                if not self._budget.remaining:
                    raise failure
                crashes.check(failure, progress)
                self._budget.remaining -= 1
                self._say(f"{failure}; starting {engine.name} again ({self._budget.remaining} restarts left)")
            await self._pool.wait_until_awake()
            try:
                return await self._pool.readmit(number, await engine.restart())
            except NodeLost:  # it has waited for long enough
                raise
            except JobError as error:
                failure = error
            await asyncio.sleep(pause)
            pause *= 2

    async def _wait_for_failure(self, number: int) -> JobError:
        """Returns the failure that ends this engine, found by its watch or by a request of the pool.

        A broken connection says little, so the watch is given CAUSE_SECONDS to find the cause.
        """
        engine = self._engines[number]
        watch = asyncio.ensure_future(engine.watch())
        down = asyncio.ensure_future(self._pool.wait_until_down(number))
        try:
            await asyncio.wait([watch, down], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([watch], timeout=CAUSE_SECONDS)
            if not watch.done():
                cause = self._pool.cause(number)
                return EngineGone(f"{engine.name}: {cause}" if cause else f"{engine.name} cannot be reached")
            error = watch.exception()
            if not isinstance(error, JobError):
                raise error or AssertionError("a watch ends with an error")
            return error
        finally:
            await cancel_all([watch, down])
