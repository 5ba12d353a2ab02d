"""Elastic engines: which of a pool's engines have left, and whether the job can go on with the others.

node lost, or never there ─▶ away ── the cluster has room ─▶ started again, given the weights
no restart is left        ─▶ away for good
fewer than `least` there for longer than `patience` ─▶ the job ends
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from rlrun.runner.contracts.errors import JobError, NodeLost

ROOM_SECONDS = 1.0
"""Time between two looks whether the cluster has room for an engine that is away."""


class ElasticEngine(Protocol):
    """An engine's process (rlrun.runner.cluster.start_engines.EngineHandle)."""

    @property
    def name(self) -> str:
        """Its name in messages: `engine 0`."""

    async def has_room(self) -> bool:
        """Returns whether the cluster has room for it."""

    def leave(self) -> None:
        """Ends what remains of it."""


class ElasticEngines:
    """The elastic engines of a pool, of which a job needs only some."""

    def __init__(
        self,
        engines: Sequence[ElasticEngine],
        least: int,
        patience: float,
        say: Callable[[str], None],
    ) -> None:
        """`least`: how many engines the job needs (`engine.min_count`). `patience`: how many seconds it waits
        with fewer (`fault_tolerance.node_timeout`). `say`: prints a message for the user.
        """
        self._engines = engines
        self._least = least
        self._patience = patience
        self._say = say
        self._away: set[int] = set()
        self._ended = 0
        self._few, self._enough = asyncio.Event(), asyncio.Event()

    def begin(self, absent: set[int]) -> None:
        """Notes which engines the cluster has no room for when the job starts."""
        self._away = absent
        self._update()
        if absent:
            self._say(f"{self._present}; the others join when the cluster has room for them")

    async def wait_for_room(self, engine: int, failure: JobError | None) -> bool:
        """Returns whether an engine was away, once the cluster has room for it.

        `failure`: what the engine died of; None if it has not joined yet.
        """
        handle = self._engines[engine]
        if await handle.has_room():
            return False
        self._away.add(engine)
        self._update()
        if failure is not None:
            handle.leave()
            self._say(f"{failure}; {handle.name} leaves: {self._present}")
        while not await handle.has_room():  # noqa: ASYNC110  # Ray does not tell of it
            await asyncio.sleep(ROOM_SECONDS)
        self._away.discard(engine)
        self._update()
        self._say(f"the cluster has room for {handle.name}; starting it")
        return True

    def end(self, engine: int, failure: JobError) -> None:
        """Ends an engine that is not worth another start. Raises its failure if the job needs it."""
        self._ended += 1
        if len(self._engines) - self._ended < self._least:
            raise failure
        self._engines[engine].leave()
        self._away.add(engine)
        self._update()
        self._say(f"{failure}; {self._engines[engine].name} is not started again: {self._present}")

    async def watch(self) -> None:
        """Never returns; raises NodeLost when there are too few engines for too long."""
        while True:
            await self._few.wait()
            try:
                async with asyncio.timeout(self._patience):
                    await self._enough.wait()
            except TimeoutError:
                raise NodeLost(
                    f"{self._present}, and no other one has joined within {self._patience:g} s "
                    "(fault_tolerance.node_timeout): add a node to the cluster, then launch again with "
                    "--resume"
                ) from None

    @property
    def _present(self) -> str:
        total = len(self._engines)
        return f"{total - len(self._away)} of {total} engines are there, at least {self._least} are needed"

    def _update(self) -> None:
        few = len(self._engines) - len(self._away) < self._least
        (self._few if few else self._enough).set()
        (self._enough if few else self._few).clear()
