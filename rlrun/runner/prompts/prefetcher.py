"""Reads the next batch of rows while the machine is busy with this one: tokenising costs no step any time."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """`fetch` in a thread, one batch ahead; its place is that of the batch handed out last."""

    def __init__(
        self,
        fetch: Callable[[], list[Item]],
        state: Callable[[], dict[str, Any]],
        seek: Callable[[dict[str, Any]], None],
    ) -> None:
        self._fetch = fetch
        self._read_state = state
        self._seek = seek
        self._state = state()
        self._pending: asyncio.Task[list[Item]] | None = None

    async def next(self) -> list[Item]:
        """The next batch; the one after it starts to be read."""
        batch = await (self._pending or self._start())
        self._state = self._read_state()
        self._pending = self._start()
        return batch

    def state(self) -> dict[str, Any]:
        """Where reading goes on after the batches handed out so far."""
        return self._state

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""
        await self.close()
        self._seek(state)
        self._state = state

    async def close(self) -> None:
        """Let the batch being read finish, and forget it."""
        if self._pending is not None:
            await asyncio.gather(self._pending, return_exceptions=True)
            self._pending = None

    def _start(self) -> asyncio.Task[list[Item]]:
        return asyncio.create_task(asyncio.to_thread(self._fetch))
