"""Reads and tokenises the next batch of rows in a thread, while the current one is used.

Rows that a data source chooses are read when they are asked for, so that the choice knows all results.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rlrun.runner.prompts.row_order import Steering

Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """Calls `fetch` one batch ahead; its state is the position after the batch that `next` returned last."""

    def __init__(
        self,
        fetch: Callable[[], list[Item]],
        state: Callable[[], dict[str, Any]],
        seek: Callable[[dict[str, Any]], None],
        steering: Steering | None = None,
    ) -> None:
        """`steering`: the data source chooses the rows, so none is read ahead."""
        self.steering = steering
        self._fetch = fetch
        self._read_state = state
        self._seek = seek
        self._state = state()
        self._pending: asyncio.Task[list[Item]] | None = None

    async def next(self) -> list[Item]:
        """Returns the next batch, and starts to read the one after it."""
        batch = await (self._pending or self._start())
        self._state = self._read_state()
        if self.steering is None:
            self._pending = self._start()
        return batch

    def state(self) -> dict[str, Any]:
        """Returns the position after the batches that `next` has returned."""
        return self._state

    async def restore(self, state: dict[str, Any]) -> None:
        """Continues from a saved position."""
        await self.close()
        self._seek(state)
        self._state = state

    async def close(self) -> None:
        """Waits for the batch that is being read, and discards it."""
        if self._pending is not None:
            await asyncio.gather(self._pending, return_exceptions=True)
            self._pending = None

    def _start(self) -> asyncio.Task[list[Item]]:
        return asyncio.create_task(asyncio.to_thread(self._fetch))
