"""One attempt to stream weights to several engines, which load every bucket at the same time.

trainer ──WeightStream.next──▶ bucket n ──▶ every engine loads it     meanwhile the trainer gathers n + 1

A pipeline that broadcasts has one stream per stage. The engines take a bucket of each in turn, so that every
stage has the time of all the others to gather its next bucket:

stage 0   gathers a0      sends a0        gathers a1 ……………………………  sends a1
stage 1   gathers b0 ……………………………        sends b0        gathers b1 ……………  sends b1

begin_update on every engine ─▶ load_bucket … load_bucket ─▶ end_update: compare, resume, report the version
                            └─ an engine fails ─▶ give_up_update; the other engines continue if they can

In a broadcast, engines and trainer wait for each other in one process group, which ends when an engine fails:
the trainer is told at once (`abort`), and engines that still wait in the group after a while count as lost.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.contracts.weight_updates import (
    Checksums,
    ServerCalls,
    StoredWeights,
    StreamedWeights,
    WeightBucket,
    WeightStream,
)
from rlrun.runner.host.background import cancel_all


class WeightClient(ServerCalls, Protocol):
    """One engine's client (rlrun.runner.engines.client.weight_client.WeightClient)."""

    @property
    def url(self) -> str:
        """Where the engine listens."""

    async def update_weights(self, update: StoredWeights) -> int:
        """Makes the engine serve stored weights; returns their version."""


Failures = dict[int, EngineError | TimeoutError]
"""The error of each engine that failed, by its number."""
Clients = Mapping[int, WeightClient]
"""The engines' clients, by number."""
Call = Callable[[int, WeightClient], Awaitable[None]]
Pending = tuple[WeightStream, asyncio.Future[WeightBucket]]
"""A stream and the bucket that was requested from it."""


_ABORTED_SECONDS = 20.0
"""How long engines have to answer after the process group that they wait in was aborted."""


class Transfer:
    """Streams one set of weights to engines; afterwards `failures` and `served` say how it ended."""

    def __init__(self, update: StreamedWeights, clients: Clients, streams: Sequence[WeightStream]) -> None:
        self.failures: Failures = {}
        self.served: set[int] = set()
        """Engines that serve the new weights."""
        self._update = update
        self._remaining = dict(clients)
        self._positions = {engine: position for position, engine in enumerate(clients)}
        """Each engine's position among the readers, which decides its ranks in process groups."""
        self._streams = streams
        self._checksums: list[Checksums | None] = []
        """Those of the streams that have ended."""

    async def run(self) -> None:
        """Transfers all buckets, or stops where no engine can continue."""
        # The first buckets are requested before the engines begin: in a broadcast the trainer joins the group
        # while they do, and neither side returns without the other.
        pending = deque(map(_request, self._streams))
        try:
            if await self._call_remaining(self._begin) and await self._load_all(pending):
                await self._call_remaining(partial(self._end, Checksums.merge(self._checksums)))
                self.served = set(self._remaining)
                return
            # The engines leave the groups, which ends broadcasts that the trainer may be waiting for.
            await call_each(self._remaining, _give_up)
            buckets = [await next_bucket for _, next_bucket in pending]
            if not self.failures:
                error = next((bucket.error for bucket in buckets if bucket.error is not None), None)
                self.failures = {
                    engine: EngineError(f"engine {client.url} was not given its weights: {error}")
                    for engine, client in self._remaining.items()
                }
        finally:
            await cancel_all([next_bucket for _, next_bucket in pending])

    async def _load_all(self, pending: "deque[Pending]") -> bool:
        """Has the engines load a bucket of each stream in turn; returns whether they have all buckets.

        Otherwise the buckets that were requested meanwhile remain in `pending`.
        """
        while pending:
            stream, next_bucket = pending[0]
            bucket = await next_bucket
            if bucket.error is not None:
                return False
            pending.popleft()
            if not bucket.tensors:
                self._checksums.append(bucket.checksums)
                continue
            pending.append(_request(stream))
            if not await self._call_remaining(partial(self._load, stream, bucket)):
                return False
        return True

    async def _call_remaining(self, call: Call) -> bool:
        """Makes a call on every remaining engine; returns whether the transfer can continue.

        An engine that fails leaves the transfer, which ends a broadcast for the others as well.
        """
        failures = await call_each(self._remaining, call, self._abort if self._update.is_collective else None)
        self.failures |= failures
        refusing = {}
        for engine, error in failures.items():
            client = self._remaining.pop(engine)
            if not is_lost(error):  # a lost engine would not answer
                refusing[engine] = client
        await call_each(refusing, _give_up)
        return bool(self._remaining) and not (failures and self._update.is_collective)

    async def _abort(self) -> None:
        reason = "an engine failed or was lost during the broadcast"
        await asyncio.gather(*(stream.abort(reason) for stream in self._streams))

    async def _begin(self, engine: int, client: WeightClient) -> None:
        first_rank = 1 + self._positions[engine] * self._update.readers  # rank 0 is the sender's
        groups = [stream.group for stream in self._streams if stream.group is not None]
        await client.begin_update(groups, first_rank)

    async def _load(
        self, stream: WeightStream, bucket: WeightBucket, engine: int, client: WeightClient
    ) -> None:
        await self._update.load(client, bucket, stream.group, engine)

    async def _end(self, checksums: Checksums | None, engine: int, client: WeightClient) -> None:
        del engine
        check_version(client, await client.end_update(checksums), self._update.version)


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


def check_version(client: WeightClient, served: int, expected: int) -> None:
    """Raises EngineError unless the engine serves the version that it was just given."""
    if served != expected:
        raise EngineError(f"engine {client.url} serves weights {served} after an update to {expected}")


def _request(stream: WeightStream) -> Pending:
    """Requests a stream's next bucket."""
    return stream, asyncio.ensure_future(stream.next())


async def _give_up(engine: int, client: WeightClient) -> None:
    del engine
    await client.give_up_update()
