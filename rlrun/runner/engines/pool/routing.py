"""Which engine a request goes to, and what becomes of it when that engine is gone or answers badly."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from rlrun.runner.contracts.errors import BadAnswer, EngineGone
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.engine_slot import EngineSlot

BUSIER = 8
"""Samples that an engine may run more than another and still be asked again by a session it knows: reading a
conversation anew costs more than a few more rows in a batch."""
SESSIONS = 65_536
"""Sessions whose engine is remembered."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
"""Seconds before another choice is asked for, where the first is gone; doubles, times 0.5 to 1.5."""
ATTEMPTS = 3
"""How often a request is asked in all while what comes back is a bad answer."""

Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)


class Router:
    """Chooses among engines and asks them; one that turns out to be gone is lost, where somebody mends it."""

    def __init__(self, clients: Sequence[EngineClient], *, mended: bool) -> None:
        """`mended`: somebody starts engines again; else one that is gone is an error of whoever asked it."""
        self.seats = [EngineSlot(client) for client in clients]
        """In the order of the engines' numbers."""
        self._mended = mended
        self._changed = asyncio.Event()
        self.bad_answers = 0
        """Bad answers since somebody last asked for their number."""
        self._told = False
        self._last: dict[str, EngineSlot] = {}
        """Which engine answered a session last; the sessions that were longest silent come first."""

    async def ask_any(
        self, session: str, load: int, call: Callable[[EngineClient], Awaitable[Answer]]
    ) -> Answer:
        """An engine's answer: of the one that answered this session last, whose cache begins with the same
        tokens, unless it is clearly busier than another; else of that with the fewest samples running.

        `load`: samples that this adds. An engine that answers badly is asked again only where no other is
        up; BadAnswer, the last, when no attempt is left.
        """
        refused: list[EngineSlot] = []
        while True:
            seat = await self._free(session, refused)
            answer = await self._try(seat, load, call, refused)
            if answer is not None:
                return answer

    async def ask(
        self, seat: EngineSlot, load: int, call: Callable[[EngineClient], Awaitable[Answer]]
    ) -> Answer:
        """The answer of this engine and no other, whenever it is up. BadAnswer when no attempt is left."""
        refused: list[EngineSlot] = []
        while True:
            await seat.up.wait()
            answer = await self._try(seat, load, call, refused)
            if answer is not None:
                return answer

    async def ask_chosen(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of an engine that somebody else chooses; of another, where that one is gone or answers
        badly. BadAnswer when no attempt is left.
        """
        pause, refused = FIRST_PAUSE, 0
        while True:
            try:
                return await call()
            except BadAnswer as error:
                refused += 1
                self._note(error, refused)
                continue
            except EngineGone as error:
                if not self._mended:
                    raise
                for seat in self.seats:
                    if seat.up.is_set() and f"{seat.client.url}/" in str(error):
                        seat.lose()
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            await self._up()
            pause = min(2 * pause, LONGEST_PAUSE)

    async def tell_all(self, call: Callable[[EngineSlot], Awaitable[None]]) -> None:
        """Tell every engine that is up."""
        await asyncio.gather(*(self._tell(seat, call) for seat in self.seats if seat.up.is_set()))

    def find(self, engine: int) -> None:
        """Ask this engine again."""
        self.seats[engine].find()
        self._changed.set()

    async def _free(self, session: str, refused: Collection[EngineSlot]) -> EngineSlot:
        """Where a request of this session goes, once an engine is up; one that it `refused` comes last."""
        up = await self._up()
        up = [seat for seat in up if seat not in refused] or up
        seat = min(up, key=lambda seat: seat.load)
        if session:
            prompt = session.partition("/")[0]
            last = self._last.pop(session, None) or self._last.get(prompt, seat)
            if last in up and last.load <= seat.load + BUSIER:
                seat = last
            self._last[session] = seat
            self._last.setdefault(prompt, seat)
            while len(self._last) > SESSIONS:
                del self._last[next(iter(self._last))]
        return seat

    async def _up(self) -> list[EngineSlot]:
        """The engines that are up, once there is one."""
        while not (up := [seat for seat in self.seats if seat.up.is_set()]):
            self._changed.clear()
            await self._changed.wait()
        return up

    async def _try(
        self,
        seat: EngineSlot,
        load: int,
        call: Callable[[EngineClient], Awaitable[Answer]],
        refused: list[EngineSlot],
    ) -> Answer | None:
        """The answer; None when the engine is lost, and somebody mends it, or when it joins the `refused`."""
        client = seat.client
        seat.load += load
        try:
            return await call(client)
        except EngineGone:
            if not self._mended:
                raise
            if client is seat.client:
                seat.lose()
            return None
        except BadAnswer as error:
            refused.append(seat)
            self._note(error, len(refused))
            return None
        finally:
            seat.load -= load

    def _note(self, error: BadAnswer, times: int) -> None:
        """Count a bad answer; it is raised where it was the last attempt. The console shows the first."""
        level, self._told = (logging.INFO if self._told else logging.WARNING), True
        self.bad_answers += 1
        logger.log(level, "%s; attempt %d of %d", error, times, ATTEMPTS)
        if times == ATTEMPTS:
            raise error

    async def _tell(self, seat: EngineSlot, call: Callable[[EngineSlot], Awaitable[None]]) -> None:
        try:
            await call(seat)
        except EngineGone:
            if not self._mended:
                raise
            seat.lose()
