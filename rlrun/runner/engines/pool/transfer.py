"""One attempt to stream weights to several engines, which load every bucket at the same time.

trainer ──WeightStream.next──▶ bucket n ──▶ every engine loads it     meanwhile the trainer gathers n + 1

begin_update on every engine ─▶ load_bucket … load_bucket ─▶ end_update: compare, resume, report the version
                            └─ an engine fails ─▶ give_up_update; the other engines continue if they can

In a broadcast, engines and trainer wait for each other in one process group, which ends when an engine fails:
the trainer is told at once (`abort`), and engines that still wait in the group after a while count as lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.contracts.weight_updates import GroupAddress, StreamedWeights, WeightBucket
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.host.background import cancel_all

Failures = dict[int, EngineError | TimeoutError]
"""The error of each engine that failed, by its number."""
Clients = Mapping[int, EngineClient]
"""The engines' clients, by number."""
Call = Callable[[int, EngineClient], Awaitable[None]]


_ABORTED_SECONDS = 20.0
"""How long engines have to answer after the process group that they wait in was aborted."""


@dataclass(frozen=True, slots=True)
class WeightStream:
    """A set of weights that a trainer is streaming."""

    group: GroupAddress | None
    """Address of the process group of a broadcast; None for shared buffers."""
    next: Callable[[], Awaitable[WeightBucket]]
    """Returns the next bucket; one without tensors at the end, or after an error."""
    abort: Callable[[str], Awaitable[None]]
    """Makes a call of `next` that waits for engines return an error; the argument is the reason."""


class Transfer:
    """Streams one set of weights to engines; afterwards `failures` and `served` say how it ended."""

    def __init__(self, update: StreamedWeights, clients: Clients, stream: WeightStream) -> None:
        self.failures: Failures = {}
        self.served: set[int] = set()
        """Engines that serve the new weights."""
        self._update = update
        self._remaining = dict(clients)
        self._positions = {engine: position for position, engine in enumerate(clients)}
        """Each engine's position among the readers, which decides its payloads and ranks."""
        self._stream = stream

    async def run(self) -> None:
        """Transfers all buckets, or stops where no engine can continue."""
        # The first bucket is requested before the engines begin: in a broadcast the trainer joins the group
        # while they do, and neither side returns without the other.
        next_bucket = asyncio.ensure_future(self._stream.next())
        try:
            can_continue = await self._call_remaining(self._begin)
            while can_continue and (bucket := await next_bucket).tensors:
                next_bucket = asyncio.ensure_future(self._stream.next())
                can_continue = await self._call_remaining(partial(self._load, bucket))
            if can_continue and bucket.error is None:
                await self._call_remaining(partial(self._end, bucket))
                self.served = set(self._remaining)
                return
            # The engines leave the group, which ends a broadcast that the trainer may be waiting for.
            await call_each(self._remaining, _give_up)
            error = (await next_bucket).error
            if not self.failures:
                self.failures = {
                    engine: EngineError(f"engine {client.url} was not given its weights: {error}")
                    for engine, client in self._remaining.items()
                }
        finally:
            await cancel_all([next_bucket])

    async def _call_remaining(self, call: Call) -> bool:
        """Makes a call on every remaining engine; returns whether the transfer can continue.

        An engine that fails leaves the transfer, which ends a broadcast for the others as well.
        """
        failures = await call_each(self._remaining, call, self._abort if self._update.broadcast else None)
        self.failures |= failures
        refusing = {}
        for engine, error in failures.items():
            client = self._remaining.pop(engine)
            if not is_lost(error):  # a lost engine would not answer
                refusing[engine] = client
        await call_each(refusing, _give_up)
        return bool(self._remaining) and not (failures and self._update.broadcast)

    async def _abort(self) -> None:
        await self._stream.abort("an engine failed or was lost during the broadcast")

    async def _begin(self, engine: int, client: EngineClient) -> None:
        first_rank = 1 + self._positions[engine] * self._update.readers  # rank 0 is the trainer's
        await client.begin_update(self._stream.group, first_rank)

    async def _load(self, bucket: WeightBucket, engine: int, client: EngineClient) -> None:
        await client.load_bucket(bucket.for_engine(self._positions[engine], self._update.readers))

    async def _end(self, bucket: WeightBucket, engine: int, client: EngineClient) -> None:
        del engine
        check_version(client, await client.end_update(bucket.checksums), self._update.version)


async def call_each(
    clients: Clients, call: Call, abort: Callable[[], Awaitable[None]] | None = None
) -> Failures:
    """Makes a call on all engines at once; returns the failures of engines, raises any other error.

    `abort`: for calls that wait for each other. It is called when the first of them fails; the others are
    then given _ABORTED_SECONDS to end.
    """
    calls = {engine: asyncio.ensure_future(call(engine, client)) for engine, client in clients.items()}
    try:
        if abort is not None and calls:
            await asyncio.wait(calls.values(), return_when=asyncio.FIRST_EXCEPTION)
            if any(made.done() and made.exception() for made in calls.values()):
                await abort()
                await asyncio.wait(calls.values(), timeout=_ABORTED_SECONDS)
                await cancel_all(calls.values())
        await asyncio.gather(*calls.values(), return_exceptions=True)
        outcomes = {engine: _error(made) for engine, made in calls.items()}
    finally:
        await cancel_all(calls.values())
    failures: Failures = {}
    for engine, error in outcomes.items():
        if isinstance(error, EngineError | TimeoutError):
            failures[engine] = error
        elif error is not None:
            raise error
    return failures


def _error(call: asyncio.Future[None]) -> BaseException | None:
    """Returns the error of a call that has ended."""
    if call.cancelled():
        return TimeoutError(f"did not leave the process group within {_ABORTED_SECONDS:g} s of its end")
    return call.exception()


def is_lost(error: EngineError | TimeoutError) -> bool:
    """Returns whether an engine is gone or hangs, which makes the other engines of a broadcast fail too."""
    return isinstance(error, EngineGone | TimeoutError)


def check_version(client: EngineClient, served: int, expected: int) -> None:
    """Raises EngineError unless the engine serves the version that it was just given."""
    if served != expected:
        raise EngineError(f"engine {client.url} serves weights {served} after an update to {expected}")


async def _give_up(engine: int, client: EngineClient) -> None:
    del engine
    await client.give_up_update()
