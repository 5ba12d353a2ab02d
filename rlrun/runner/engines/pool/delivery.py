"""Gives one version of the weights to several engines at once, by the carrier that the trainer wrote it for.

    stored    each engine reads it: shared memory, a folder
    streamed  trainer ──bucket──▶ every engine ──▶ next bucket; the trainer gathers it meanwhile

Every engine is told to begin, loads, and is compared; who fails is named, and does not hold up the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rlrun.runner.contracts.carriers import (
    FolderWeights,
    GroupAddress,
    Readers,
    SerializedWeights,
    StreamedWeights,
    WeightBucket,
    WeightManifest,
    WeightUpdate,
)
from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.host.background import cancel_all

Failures = dict[int, EngineError | TimeoutError]
"""By number of the engine."""
Clients = Mapping[int, EngineClient]
Call = Callable[[int, EngineClient], Awaitable[None]]
StoredWeights = WeightManifest | SerializedWeights | FolderWeights


class WeightsMoved(Exception):
    """The trainer has other weights by now than those to be handed over."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """A set of weights being handed over."""

    group: GroupAddress | None
    next: Callable[[], Awaitable[WeightBucket]]


class BucketSource(Protocol):
    """Who hands over streamed weights (rlrun.runner.cluster.trainer_group.TrainerGroup)."""

    def hand_over(self, version: int, readers: Readers) -> AbstractAsyncContextManager[Buckets]:
        """The weights of a version. WeightsMoved when there are others by now."""


class Delivery:
    """Knows how many engines there are, and what each was given."""

    def __init__(self, engines: int) -> None:
        self.source: BucketSource | None = None
        """Needed for streamed weights alone."""
        self._lives = [0] * engines
        self._given: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._version = -1

    def forget(self, engine: int) -> None:
        """This engine is lost; started again it has nothing of what it was given."""
        self._lives[engine] += 1
        self._given.pop(engine, None)

    async def deliver(self, update: WeightUpdate, clients: Clients) -> Failures:
        """Give these engines new weights; the failures of those that do not serve them now.

        WeightsMoved where they are no longer to be had; nothing was given then.
        """
        if update.version != self._version:
            self._version, self._read = update.version, {}
        if isinstance(update, StreamedWeights):
            failures = await self._stream(update, clients)
        else:
            failures = await _each(clients, lambda engine, client: self._read_stored(engine, client, update))
        for engine in clients:
            if engine in failures:
                self.forget(engine)
            else:
                self._given[engine] = update.version
        return failures

    async def _read_stored(self, engine: int, client: EngineClient, update: StoredWeights) -> None:
        own = update
        if isinstance(own, SerializedWeights):
            times = self._read.get(engine, 0)
            if times >= own.copies:
                raise EngineError(f"engine {client.url} was lost {times} times within one step")
            self._read[engine] = times + 1
            own = own.for_engine(engine, len(self._lives), times)
        if isinstance(own, FolderWeights) and self._given.get(engine) == own.changed_since:
            own = own.only_changed()
        _check(client, await client.update_weights(own), update.version)

    async def _stream(self, update: StreamedWeights, clients: Clients) -> Failures:
        """Until all that are left have everything: one that is gone breaks a broadcast for the others."""
        failures: Failures = {}
        while clients:
            failed, served = await self._pass(update, clients)
            if not served and any(map(_is_culprit, failed.values())):
                failed = {engine: error for engine, error in failed.items() if _is_culprit(error)}
            failures |= failed
            clients = {engine: one for engine, one in clients.items() if engine not in {*failed, *served}}
        return failures

    async def _pass(self, update: StreamedWeights, clients: Clients) -> tuple[Failures, set[int]]:
        """One attempt with these engines: who failed, and who serves the weights."""
        assert self.source is not None, "streamed weights have a source"
        lives = tuple(self._lives[engine] for engine in clients)
        readers = Readers(tuple(clients), lives, update.readers)
        async with self.source.hand_over(update.version, readers) as buckets:
            transfer = _Transfer(update, clients, buckets)
            await transfer.run()
        return transfer.failures, transfer.served


class _Transfer:
    """Buckets to several engines, in step."""

    def __init__(self, update: StreamedWeights, clients: Clients, buckets: Buckets) -> None:
        self.failures: Failures = {}
        self.served: set[int] = set()
        self._update = update
        self._left = dict(clients)
        self._places = {engine: number for number, engine in enumerate(clients)}
        self._buckets = buckets

    async def run(self) -> None:
        """All buckets, or up to where it cannot go on."""
        coming = asyncio.ensure_future(self._buckets.next())  # meets the engines, where there is a group
        try:
            going = await self._tell(self._begin)
            while going and (bucket := await coming).tensors:
                coming = asyncio.ensure_future(self._buckets.next())
                going = await self._tell(partial(self._load, bucket))
            if going and bucket.error is None:
                await self._tell(partial(self._end, bucket))
                self.served = set(self._left)
                return
            await _each(self._left, _give_up)  # they leave the group, which ends what the trainer waits for
            error = (await coming).error
            if not self.failures:
                self.failures = {engine: _unsent(client, error) for engine, client in self._left.items()}
        finally:
            await cancel_all([coming])

    async def _tell(self, call: Call) -> bool:
        """Whether it makes sense to go on."""
        failed = await _each(self._left, call)
        self.failures |= failed
        refused = {}
        for engine, error in failed.items():
            client = self._left.pop(engine)
            if not _is_culprit(error):  # who is gone or hangs would not hear it
                refused[engine] = client
        await _each(refused, _give_up)
        return bool(self._left) and not (failed and self._update.broadcast)

    async def _begin(self, engine: int, client: EngineClient) -> None:
        first = 1 + self._places[engine] * self._update.readers
        await client.begin_update(self._buckets.group, first)

    async def _load(self, bucket: WeightBucket, engine: int, client: EngineClient) -> None:
        await client.load_bucket(bucket.for_engine(self._places[engine], self._update.readers))

    async def _end(self, bucket: WeightBucket, engine: int, client: EngineClient) -> None:
        del engine
        _check(client, await client.end_update(bucket.checksums), self._update.version)


async def _give_up(engine: int, client: EngineClient) -> None:
    del engine
    await client.give_up_update()


def _unsent(client: EngineClient, error: str | None) -> EngineError:
    return EngineError(f"engine {client.url} was not given its weights: {error}")


async def _each(clients: Clients, call: Call) -> Failures:
    """Call all at once; what failed."""
    calls = [call(engine, client) for engine, client in clients.items()]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    failures: Failures = {}
    for engine, answer in zip(clients, answers, strict=True):
        if isinstance(answer, EngineError | TimeoutError):
            failures[engine] = answer
        elif isinstance(answer, BaseException):
            raise answer
    return failures


def _is_culprit(error: EngineError | TimeoutError) -> bool:
    """Gone or hung, and so the cause of what failed in others that took part."""
    return isinstance(error, EngineGone | TimeoutError)


def _check(client: EngineClient, found: int, version: int) -> None:
    if found != version:
        raise EngineError(f"engine {client.url} serves weights {found} after an update to {version}")
