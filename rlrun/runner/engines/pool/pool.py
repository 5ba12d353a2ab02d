"""All engines of a job as one. An engine that is lost is asked nothing until it is mended; what it was asked
is asked again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import GenerateRequest, Generation, WeightUpdate
from rlrun.runner.contracts.errors import BadAnswer, EngineError
from rlrun.runner.engines.client.client import EngineClient, Tag
from rlrun.runner.engines.client.parsing import check_versions
from rlrun.runner.engines.pool.delivery import BucketSource, Delivery, Failures, WeightsMoved
from rlrun.runner.engines.pool.engine_slot import EngineSlot
from rlrun.runner.engines.pool.routing import Router
from rlrun.runner.host.failures import gather_or_first_cause

SCORED_TOGETHER = 16
"""Sequences in one call for their log-probs."""

SendSample = Callable[[GenerateRequest, int], Awaitable[Generation]]
"""For one sample of a request, by its number among the request's seeds."""


class EnginePool:
    """Routes requests over engines, and tells all of them what concerns all."""

    def __init__(
        self, clients: Sequence[EngineClient], *, mended: bool = False, ask_one: SendSample | None = None
    ) -> None:
        """`mended`: somebody starts engines again that are lost, and calls `mend`; else a lost engine is an
        error of whoever asked it. `ask_one`: how samples are asked for where something else than the pool
        chooses the engine.
        """
        assert clients, "a pool needs an engine"
        self._ask_one = ask_one
        self._router = Router(clients, mended=mended)
        self._mended = mended
        self._delivery = Delivery(len(clients))
        self._weights: WeightUpdate | None = None
        self._confirmed = 0
        """The version that all engines which are up serve at least."""
        self._updating = asyncio.Lock()
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def seats(self) -> Sequence[EngineSlot]:
        """Of the engines, by number."""
        return self._router.seats

    @property
    def vocabulary(self) -> int:
        """Token numbers of the served model are below this."""
        return min(seat.client.vocabulary for seat in self._router.seats)

    def take_bad_answers(self) -> int:
        """How many answers were not what an engine was asked for, since this was last asked."""
        count, self._router.bad_answers = self._router.bad_answers, 0
        return count

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """The n samples of one request: on the engine that answered its session last, whose cache begins
        with the same tokens, unless it is clearly busier than another; else on that with the fewest samples
        running. Or each wherever `ask_one` has it made.
        """
        if self._ask_one is not None:
            asks = [partial(self._generate_one, request, number) for number in range(len(request.seeds))]
            return await gather_or_first_cause([self._router.ask_chosen(ask) for ask in asks])
        ask = partial(self._generate_with, requests=[request])
        answer = await self._router.ask_any(request.session, len(request.seeds), ask)
        return answer[0]

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """All requests, one call an engine: which runs what together depends on nothing but their order."""
        seats = self._router.seats
        size = -(-len(requests) // len(seats)) or 1
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        answers = await asyncio.gather(*map(self._generate_on, seats, parts))
        return [generations for part in answers for generations in part]

    async def abort(self, request: GenerateRequest) -> None:
        """End a running request, whichever engine has it; it answers with what it has."""
        await self._router.tell_all(lambda seat: seat.client.abort(request))

    async def score(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        """Log-probs `[T - 1]` of each sequence's own tokens from the second on, at temperature 1."""
        parts = [sequences[at : at + SCORED_TOGETHER] for at in range(0, len(sequences), SCORED_TOGETHER)]
        answers = await asyncio.gather(*(self._score(part) for part in parts))
        return [values for part in answers for values in part]

    async def _score(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        return await self._router.ask_any("", len(sequences), lambda client: client.score(sequences))

    async def abort_all(self) -> None:
        """End every running request; each answers with what it has."""
        await self._router.tell_all(lambda seat: seat.client.abort_all())

    async def sleep(self) -> None:
        """Give the memory of weights and cache away until `wake`; what runs is aborted."""
        self._awake.clear()
        await self._router.tell_all(lambda seat: seat.release())

    async def wake(self, tag: Tag) -> None:
        """Have that memory again: for weights that are about to be given, or to generate."""
        await self._router.tell_all(lambda seat: seat.take_back(tag))
        if tag == "kv_cache":
            self._awake.set()

    async def awake(self) -> None:
        """Return once engines are not asleep: there is memory for one to start."""
        await self._awake.wait()

    async def health(self) -> dict[str, bool]:
        """Whether each engine works, by URL."""
        states = await asyncio.gather(*(seat.client.health() for seat in self._router.seats))
        return {seat.client.url: state for seat, state in zip(self._router.seats, states, strict=True)}

    async def update_weights(self, update: WeightUpdate) -> int:
        """Serve new weights from the next forward pass on; the version that every engine confirmed.

        An engine that is lost gets them when it is mended. One that refuses them, or holds others than were
        sent, is lost as well; where nobody mends it, that is an error.
        """
        async with self._updating:
            self._weights = update
            asked = [
                number for number, seat in enumerate(self._router.seats) if seat.up.is_set() or seat.waits
            ]
            failures = await self._deliver(update, asked)
            if failures and not self._mended:
                raise next(iter(failures.values()))
            self._confirmed = update.version
            for number in asked:
                if number in failures:
                    self._router.seats[number].lose(str(failures[number]))
                elif self._router.seats[number].waits:
                    self._router.find(number)
        return update.version

    @property
    def version(self) -> int | None:
        """Of the weights that the engines serve; None where they were given none."""
        return None if self._weights is None else self._weights.version

    def connect(self, source: BucketSource) -> None:
        """From now on this trainer hands over weights that are streamed."""
        self._delivery.source = source

    def forget_weights(self) -> None:
        """The update of before is no longer to be had; an engine that is mended waits for the next."""
        self._weights, self._confirmed = None, 0

    async def lost(self, engine: int) -> None:
        """Return once this engine is lost."""
        await self._router.seats[engine].down.wait()

    def cause(self, engine: int) -> str | None:
        """Why this engine was lost, where the pool found out."""
        return self._router.seats[engine].cause

    def lose(self, engine: int) -> None:
        """Ask this engine nothing more."""
        self._router.seats[engine].lose(self._router.seats[engine].cause)

    async def mend(self, engine: int, client: EngineClient) -> None:
        """Ask this engine again, by another client, as soon as it serves the weights that the others do.

        Where the trainer has others by now that is after the next update. EngineError when it refuses them.
        """
        seat = self._router.seats[engine]
        async with self._updating:
            await seat.replace(client)
            self._delivery.forget(engine)
            try:
                failures = {} if self._weights is None else await self._deliver(self._weights, [engine])
            except WeightsMoved:
                seat.wait_for_update()
            else:
                if failures:
                    raise EngineError(str(failures[engine]))
                self._router.find(engine)
        if seat.waits:
            await seat.updated()

    async def close(self) -> None:
        """Close the connections; the engines go on."""
        await asyncio.gather(*(seat.client.close() for seat in self._router.seats))

    async def _generate_on(
        self, seat: EngineSlot, requests: Sequence[GenerateRequest]
    ) -> list[list[Generation]]:
        samples = sum(len(request.seeds) for request in requests)
        return await self._router.ask(seat, samples, partial(self._generate_with, requests=requests))

    async def _generate_with(
        self, client: EngineClient, requests: Sequence[GenerateRequest]
    ) -> list[list[Generation]]:
        """What this engine makes of requests; BadAnswer where it claims weights that it cannot have."""
        oldest = self._confirmed
        answers = await client.generate_batch(requests)
        try:
            check_versions(answers, oldest, self._given)
        except BadAnswer as error:
            raise error.from_engine(client.name, "/generate") from None
        return answers

    async def _generate_one(self, request: GenerateRequest, number: int) -> Generation:
        """The same for one sample, by an engine that something else chooses."""
        assert self._ask_one is not None
        oldest = self._confirmed
        generation = await self._ask_one(request, number)
        try:
            check_versions([[generation]], oldest, self._given)
        except BadAnswer as error:
            raise error.from_engine("an engine behind the router", "/generate") from None
        return generation

    @property
    def _given(self) -> int | None:
        """The newest weights that engines were given; None: not known."""
        return None if self._weights is None else self._weights.version

    async def _deliver(self, update: WeightUpdate, engines: Sequence[int]) -> Failures:
        return await self._delivery.deliver(update, {one: self._router.seats[one].client for one in engines})
