"""Executions in lockstep: what they ask of the engines goes as one batch, once every one of them waits.

    execution 0 ─ask─▶ │                          │ ─answer─▶ …
    execution 1 ─ask─▶ │ one batch, in the order  │ ─answer─▶ a tool runs … ─ask─▶ │
    execution 2 ─ask─▶ │ of prompts and samples   │ ─answer─▶ done                 │ the next batch

Which requests run together in an engine then depends on what was asked alone, never on who was first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rlrun.runner.contracts.carriers import GenerateRequest, Generation

SendBatch = Callable[[Sequence[GenerateRequest]], Awaitable[list[list[Generation]]]]


class Barrier:
    """Collects what its seats ask. All seats are taken before the first one asks."""

    def __init__(self, ask_all: SendBatch) -> None:
        self._ask_all = ask_all
        self._seats: set[BarrierSlot] = set()
        self._asking: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        """Why the engines did not answer, once they have not; every seat that asked got it."""

    def seat(self, place: tuple[int, ...]) -> "BarrierSlot":
        """A place in the order of requests; until it is left, the others wait for it to ask."""
        seat = BarrierSlot(self, place)
        self._seats.add(seat)
        return seat

    def leave(self, seat: "BarrierSlot") -> None:
        """This one asks nothing more."""
        self._seats.discard(seat)
        self.look()

    def look(self) -> None:
        """Ask the engines, where every seat waits for them."""
        if self._asking is None and self._seats and all(seat.waiting for seat in self._seats):
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        waiting = [one for seat in sorted(self._seats, key=lambda seat: seat.place) for one in seat.waiting]
        for seat in self._seats:
            seat.waiting = []
        try:
            answers = await self._ask_all([request for request, _ in waiting])
        except Exception as error:  # handed on to everybody who waits for the answer
            self.error = error
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), answer in zip(waiting, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        self._asking = None
        self.look()

    async def close(self) -> None:
        """Give up what is being asked."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])


class BarrierSlot:
    """One execution's place."""

    def __init__(self, barrier: Barrier, place: tuple[int, ...]) -> None:
        self.place = place
        self.waiting: list[tuple[GenerateRequest, asyncio.Future[list[Generation]]]] = []
        self._barrier = barrier

    def leave(self) -> None:
        """This one asks nothing more; the others need not wait for it."""
        self._barrier.leave(self)

    async def ask(self, request: GenerateRequest) -> list[Generation]:
        """The samples of a request, answered together with what the other seats ask."""
        if self._barrier.error is not None:
            raise self._barrier.error
        future: asyncio.Future[list[Generation]] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        self._barrier.look()
        return await future
