"""All engines of a job as one. An engine that is lost is asked nothing until it is mended; what it was asked
is asked again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.background import cancel_all
from rlrun.runner.carriers import GenerateRequest, Generation, WeightUpdate
from rlrun.runner.engines.client import EngineClient, Tag
from rlrun.runner.engines.delivery import BucketSource, Delivery, Failures, WeightsMoved
from rlrun.runner.errors import EngineError, EngineGone

BUSIER = 8
"""Samples that an engine may run more than another and still be asked again by a session it knows: reading a
conversation anew costs more than a few more rows in a batch."""
SESSIONS = 65_536
"""Sessions whose engine is remembered."""
SCORED_TOGETHER = 16
"""Sequences in one call for their log-probs."""

Answer = TypeVar("Answer")


class _Seat:
    """One engine: how it is reached, how much it has to do, and whether it can be asked."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.load = 0
        self.waits = False
        """For the next update of the weights; it is well otherwise."""
        self.cause: str | None = None
        """Why it was lost, where that is known."""
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.up.set()
        self.asleep: set[Tag] = set()
        """What it has no memory for."""

    def lose(self, cause: str | None = None) -> None:
        self.cause = cause
        self.waits = False
        self.up.clear()
        self.down.set()

    async def updated(self) -> None:
        """Return once the next update went well. EngineError when it did not."""
        events = [asyncio.ensure_future(event.wait()) for event in (self.up, self.down)]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(events)
        if self.down.is_set():
            raise EngineError(self.cause or f"engine {self.client.url} was lost")

    def find(self) -> None:
        self.waits = False
        self.cause = None
        self.down.clear()
        self.up.set()


class EnginePool:
    """Routes requests over engines, and tells all of them what concerns all."""

    def __init__(self, clients: Sequence[EngineClient], *, mended: bool = False) -> None:
        """`mended`: somebody starts engines again that are lost, and calls `mend`; else a lost engine is an
        error of whoever asked it.
        """
        assert clients, "a pool needs an engine"
        self._seats = [_Seat(client) for client in clients]
        self._mended = mended
        self._delivery = Delivery(len(clients))
        self._weights: WeightUpdate | None = None
        self._updating = asyncio.Lock()
        self._changed = asyncio.Event()
        self._awake = asyncio.Event()
        self._awake.set()
        self._last: dict[str, _Seat] = {}
        """Which engine answered a session last; the sessions that were longest silent come first."""

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """The n samples of one request: on the engine that answered its session last, whose cache begins
        with the same tokens, unless it is clearly busier than another; else on that with the fewest samples
        running.
        """
        while True:
            seat = await self._free_seat(request.session)
            answer = await self._ask(seat, [request])
            if answer is not None:
                return answer[0]

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """All requests, one call an engine: which runs what together depends on nothing but their order."""
        size = -(-len(requests) // len(self._seats)) or 1
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        asked = zip(self._seats, parts, strict=False)
        answers = await asyncio.gather(*(self._ask_until_answered(seat, part) for seat, part in asked))
        return [generations for part in answers for generations in part]

    async def abort(self, request: GenerateRequest) -> None:
        """End a running request, whichever engine has it; it answers with what it has."""
        await self._all(lambda seat: seat.client.abort(request))

    async def score(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        """Log-probs `[T - 1]` of each sequence's own tokens from the second on, at temperature 1."""
        parts = [sequences[at : at + SCORED_TOGETHER] for at in range(0, len(sequences), SCORED_TOGETHER)]
        answers = await asyncio.gather(*(self._score(part) for part in parts))
        return [values for part in answers for values in part]

    async def _score(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        while True:
            seat = await self._free_seat("")
            answer = await self._try(seat, len(sequences), lambda client: client.score(sequences))
            if answer is not None:
                return answer

    async def abort_all(self) -> None:
        """End every running request; each answers with what it has."""
        await self._all(lambda seat: seat.client.abort_all())

    async def pause(self, mode: Literal["abort", "in_place", "retract"] = "in_place") -> None:
        """Stop generating until `resume`."""
        await self._all(lambda seat: seat.client.pause(mode))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._all(lambda seat: seat.client.resume())

    async def sleep(self) -> None:
        """Give the memory of weights and cache away until `wake`; what runs is aborted."""
        self._awake.clear()
        await self._all(self._release)

    async def wake(self, tag: Tag) -> None:
        """Have that memory again: for weights that are about to be given, or to generate."""
        await self._all(lambda seat: self._take_back(seat, tag))
        if tag == "kv_cache":
            self._awake.set()

    async def awake(self) -> None:
        """Return once engines are not asleep: there is memory for one to start."""
        await self._awake.wait()

    async def _release(self, seat: _Seat) -> None:
        tags = [tag for tag in get_args(Tag) if tag not in seat.asleep]
        if tags:
            await seat.client.settle()
            await seat.client.release_memory(tags)
            seat.asleep = set(get_args(Tag))

    async def _take_back(self, seat: _Seat, tag: Tag) -> None:
        if tag in seat.asleep:
            await seat.client.resume_memory([tag])
            seat.asleep.discard(tag)

    async def flush_cache(self) -> None:
        """Forget cached prefixes. EngineError while requests run."""
        await self._all(lambda seat: seat.client.flush_cache())

    async def health(self) -> dict[str, bool]:
        """Whether each engine works, by URL."""
        states = await asyncio.gather(*(seat.client.health() for seat in self._seats))
        return {seat.client.url: state for seat, state in zip(self._seats, states, strict=True)}

    async def update_weights(self, update: WeightUpdate) -> int:
        """Serve new weights from the next forward pass on; the version that every engine confirmed.

        An engine that is lost gets them when it is mended. One that refuses them, or holds others than were
        sent, is lost as well; where nobody mends it, that is an error.
        """
        async with self._updating:
            self._weights = update
            asked = [number for number, seat in enumerate(self._seats) if seat.up.is_set() or seat.waits]
            failures = await self._deliver(update, asked)
            if failures and not self._mended:
                raise next(iter(failures.values()))
            for number in asked:
                if number in failures:
                    self._seats[number].lose(str(failures[number]))
                elif self._seats[number].waits:
                    self._find(number)
        return update.version

    def connect(self, source: BucketSource) -> None:
        """From now on this trainer hands over weights that are streamed."""
        self._delivery.source = source

    def forget_weights(self) -> None:
        """The update of before is no longer to be had; an engine that is mended waits for the next."""
        self._weights = None

    async def lost(self, engine: int) -> None:
        """Return once this engine is lost."""
        await self._seats[engine].down.wait()

    def cause(self, engine: int) -> str | None:
        """Why this engine was lost, where the pool found out."""
        return self._seats[engine].cause

    def lose(self, engine: int) -> None:
        """Ask this engine nothing more."""
        self._seats[engine].lose(self._seats[engine].cause)

    async def mend(self, engine: int, client: EngineClient) -> None:
        """Ask this engine again, by another client, as soon as it serves the weights that the others do.

        Where the trainer has others by now that is after the next update. EngineError when it refuses them.
        """
        seat = self._seats[engine]
        async with self._updating:
            await seat.client.close()
            seat.client = client
            seat.asleep = set()
            self._delivery.forget(engine)
            try:
                failures = {} if self._weights is None else await self._deliver(self._weights, [engine])
            except WeightsMoved:
                seat.waits = True
                seat.down.clear()
            else:
                if failures:
                    raise EngineError(str(failures[engine]))
                self._find(engine)
        if seat.waits:
            await seat.updated()

    async def close(self) -> None:
        """Close the connections; the engines go on."""
        await asyncio.gather(*(seat.client.close() for seat in self._seats))

    async def _free_seat(self, session: str) -> _Seat:
        """Where a request of this session goes, once an engine is up."""
        while not (up := [seat for seat in self._seats if seat.up.is_set()]):
            self._changed.clear()
            await self._changed.wait()
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

    async def _ask_until_answered(
        self, seat: _Seat, requests: Sequence[GenerateRequest]
    ) -> list[list[Generation]]:
        while True:
            await seat.up.wait()
            answer = await self._ask(seat, requests)
            if answer is not None:
                return answer

    async def _ask(self, seat: _Seat, requests: Sequence[GenerateRequest]) -> list[list[Generation]] | None:
        samples = sum(len(request.seeds) for request in requests)
        return await self._try(seat, samples, lambda client: client.generate_batch(requests))

    async def _try(
        self, seat: _Seat, load: int, call: Callable[[EngineClient], Awaitable[Answer]]
    ) -> Answer | None:
        """The answer; None when the engine is lost, and somebody mends it."""
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
        finally:
            seat.load -= load

    async def _deliver(self, update: WeightUpdate, engines: Sequence[int]) -> Failures:
        return await self._delivery.deliver(update, {one: self._seats[one].client for one in engines})

    def _find(self, engine: int) -> None:
        self._seats[engine].find()
        self._changed.set()

    async def _all(self, call: Callable[[_Seat], Awaitable[None]]) -> None:
        """Tell every engine that is up; one that turns out to be gone is lost, where somebody mends it."""
        await asyncio.gather(*(self._tell(seat, call) for seat in self._seats if seat.up.is_set()))

    async def _tell(self, seat: _Seat, call: Callable[[_Seat], Awaitable[None]]) -> None:
        try:
            await call(seat)
        except EngineGone:
            if not self._mended:
                raise
            seat.lose()
