"""Sends requests to engines, and sends them again when an engine is gone or answers badly.

dispatch ──SessionAffinity──▶ slot ──▶ engine ──answer──▶ caller
    ▲                                    ├─ EngineGone: the slot is marked down, another one is chosen
    └────────────────────────────────────┴─ BadAnswer: another one is chosen, up to ATTEMPTS times
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

from rlrun.runner.contracts.errors import BadAnswer, EngineGone
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.affinity import SessionAffinity
from rlrun.runner.engines.pool.engine_slot import EngineSlot

FIRST_PAUSE, MAX_PAUSE = 0.2, 2.0
"""Seconds before a gateway is called again when the engine that it chose is gone. The pause doubles each time
and is multiplied by a random factor from 0.5 to 1.5."""
ATTEMPTS = 3
"""How often a request is sent in all while the answers are bad."""

Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)


class Router:
    """Chooses engines and sends them requests. It marks an engine that is gone as down."""

    def __init__(self, clients: Sequence[EngineClient | None], *, supervised: bool) -> None:
        """`supervised`: lost engines are started again, so requests wait for them; otherwise an engine that
        is gone is an error of the request.
        """
        self.slots = [EngineSlot(client, number) for number, client in enumerate(clients)]
        """In the order of the engines' numbers."""
        self.bad_answers = 0
        """Bad answers since the count was last reset."""
        self._supervised = supervised
        self._slot_came_up = asyncio.Event()
        self._affinity = SessionAffinity()
        self._has_warned = False

    async def dispatch(
        self,
        session: str,
        load: int,
        call: Callable[[EngineClient], Awaitable[Answer]],
        prompts: Collection[int] = (),
    ) -> Answer:
        """Returns the answer of the engine that suits this session best (see SessionAffinity).

        `load`: the number of samples that the call adds. `prompts`: the indices of their prompts, for the
        timeline. An engine that answered badly gets the request again only if no other engine is up. Raises
        the last BadAnswer after the last attempt.
        """
        refused: list[EngineSlot] = []
        while True:
            up = await self.slots_up()
            slot = self._affinity.choose(session, [slot for slot in up if slot not in refused] or up)
            answer = await self._try(slot, load, call, refused, prompts)
            if answer is not None:
                return answer

    async def dispatch_to(
        self,
        slot: EngineSlot,
        load: int,
        call: Callable[[EngineClient], Awaitable[Answer]],
        prompts: Collection[int] = (),
    ) -> Answer:
        """Returns the answer of this engine, waiting for it while it is down.

        `load`, `prompts`: as for `dispatch`. Raises the last BadAnswer after the last attempt.
        """
        refused: list[EngineSlot] = []
        while True:
            await slot.up.wait()
            answer = await self._try(slot, load, call, refused, prompts)
            if answer is not None:
                return answer

    async def dispatch_by_gateway(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Returns the answer to a call for which a gateway chooses the engine.

        The call is repeated where that engine is gone or answers badly. Raises the last BadAnswer after the
        last attempt.
        """
        pause, bad_answers = FIRST_PAUSE, 0
        while True:
            try:
                return await call()
            except BadAnswer as error:
                bad_answers += 1
                self._count_bad_answer(error, bad_answers)
                continue
            except EngineGone as error:
                if not self._supervised:
                    raise
                self._mark_down_if_named(str(error))
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            await self.slots_up()
            pause = min(2 * pause, MAX_PAUSE)

    async def broadcast(self, call: Callable[[EngineSlot], Awaitable[None]]) -> None:
        """Makes this call on every engine that is up."""
        await asyncio.gather(*(self._call_or_mark_down(slot, call) for slot in self._up()))

    def mark_up(self, engine: int) -> None:
        """Sends requests to this engine again."""
        self.slots[engine].mark_up()
        self._slot_came_up.set()

    @property
    def generating(self) -> list[EngineSlot]:
        """The slots of engines that generate; prefill servers do not."""
        return [slot for slot in self.slots if not slot.is_prefill]

    async def slots_up(self, role: Literal["generate", "prefill"] = "generate") -> list[EngineSlot]:
        """Returns the slots that are up and do this, waiting until there is one."""
        while not (up := [slot for slot in self._up() if slot.is_prefill == (role == "prefill")]):
            self._slot_came_up.clear()
            await self._slot_came_up.wait()
        return up

    @contextmanager
    def at_work(self, slot: EngineSlot, load: int, prompts: Collection[int]) -> Iterator[None]:
        """Counts samples as running on an engine within the context."""
        slot.load += load
        try:
            with slot.busy.working(prompts):
                yield
        finally:
            slot.load -= load

    def mark_gone(self, slot: EngineSlot, client: EngineClient, error: EngineGone) -> None:
        """Marks the slot of an engine that is gone as down. Raises the error if engines are not supervised.

        `client`: the one that the error came from; the engine may have been started again since.
        """
        if not self._supervised:
            raise error
        if client is slot.client:
            slot.mark_down()

    def _up(self) -> list[EngineSlot]:
        return [slot for slot in self.slots if slot.up.is_set()]

    async def _try(
        self,
        slot: EngineSlot,
        load: int,
        call: Callable[[EngineClient], Awaitable[Answer]],
        refused: list[EngineSlot],
        prompts: Collection[int],
    ) -> Answer | None:
        """Returns the answer, or None if the request has to be sent again.

        None means that the engine is down (if it is supervised), or that it answered badly and was added to
        `refused`.
        """
        client = slot.client
        try:
            with self.at_work(slot, load, prompts):
                return await call(client)
        except EngineGone as error:
            self.mark_gone(slot, client, error)
            return None
        except BadAnswer as error:
            refused.append(slot)
            self._count_bad_answer(error, len(refused))
            return None

    def _count_bad_answer(self, error: BadAnswer, attempt: int) -> None:
        """Counts and logs a bad answer; raises it after the last attempt. Only the first one is a warning."""
        level, self._has_warned = (logging.INFO if self._has_warned else logging.WARNING), True
        self.bad_answers += 1
        logger.log(level, "%s; attempt %d of %d", error, attempt, ATTEMPTS)
        if attempt == ATTEMPTS:
            raise error

    def _mark_down_if_named(self, message: str) -> None:
        """Marks the engine down whose address the router's message names; a message may name none."""
        for slot in self._up():
            if f"{slot.client.url}/" in message:
                slot.mark_down()

    async def _call_or_mark_down(
        self, slot: EngineSlot, call: Callable[[EngineSlot], Awaitable[None]]
    ) -> None:
        try:
            await call(slot)
        except EngineGone:
            if not self._supervised:
                raise
            slot.mark_down()
