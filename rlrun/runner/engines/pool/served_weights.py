"""Which weights the engines of a pool serve, and how an engine that was started again gets them.

trainer ──WeightUpdate──▶ update  ──Delivery──▶ every engine that is up     failures: marked down
supervisor ──client────▶ readmit ──Delivery──▶ one engine started again    then marked up
"""

import asyncio
from collections.abc import Sequence

from rlrun.runner.contracts.carriers import Generation
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.weight_updates import WeightsMoved, WeightUpdate
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.parsing import check_versions
from rlrun.runner.engines.pool.routing import Router
from rlrun.runner.weights.delivery import Delivery
from rlrun.runner.weights.transfer import Failures


class ServedWeights:
    """Delivers weights to the engines of one router."""

    def __init__(self, router: Router, *, supervised: bool) -> None:
        """`supervised`: an engine that an update fails on is started again; otherwise that is an error."""
        self._router = router
        self._supervised = supervised
        self._delivery = Delivery(len(router.slots))
        self._current: WeightUpdate | None = None
        self._confirmed = 0
        self._given = {0}
        """Every version that engines were given; they start with 0."""
        self._lock = asyncio.Lock()
        """Held during an update and while an engine is readmitted, so that it misses no update."""

    @property
    def version(self) -> int | None:
        """Version of the last update; None before the first."""
        return None if self._current is None else self._current.version

    @property
    def confirmed(self) -> int:
        """The oldest version that an engine which is up can serve."""
        return self._confirmed

    def forget(self) -> None:
        """Drops the last update; restarted engines wait for the next one."""
        self._current, self._confirmed = None, 0
        self._delivery.forget_versions()

    async def update(self, update: WeightUpdate) -> int:
        """Delivers new weights to all engines that are well; returns their version.

        An engine that fails is marked down. Raises the first failure where engines are not supervised.
        """
        slots = self._router.slots
        async with self._lock:
            self._current = update
            self._given.add(update.version)
            engines = [number for number, slot in enumerate(slots) if slot.up.is_set() or slot.awaits_update]
            failures = await self._deliver(update, engines)
            if failures and not self._supervised:
                raise next(iter(failures.values()))
            self._confirmed = update.version
            for number in engines:
                if number in failures:
                    slots[number].mark_down(str(failures[number]))
                elif slots[number].awaits_update:
                    self._router.mark_up(number)
        return update.version

    async def readmit(self, engine: int, client: EngineClient) -> None:
        """Sends requests to a restarted engine again, once it serves the weights that the others serve.

        Where the trainer has newer weights by now, that is after the next update. Raises EngineError when the
        engine refuses the weights.
        """
        slot = self._router.slots[engine]
        async with self._lock:
            await slot.replace_client(client)
            self._delivery.forget(engine)
            try:
                failures = {} if self._current is None else await self._deliver(self._current, [engine])
            except WeightsMoved:
                slot.mark_awaiting_update()
            else:
                if failures:
                    raise EngineError(str(failures[engine]))
                self._router.mark_up(engine)
        if slot.awaits_update:
            await slot.wait_for_update()

    def check(self, answers: Sequence[Sequence[Generation]], confirmed: int) -> None:
        """Raises BadAnswer if tokens claim weights that their engine cannot have served.

        `confirmed`: the value of that property when the request was sent.
        """
        check_versions(answers, confirmed, self.version, self._given)

    async def _deliver(self, update: WeightUpdate, engines: Sequence[int]) -> Failures:
        clients = {number: self._router.slots[number].client for number in engines}
        return await self._delivery.deliver(update, clients)
