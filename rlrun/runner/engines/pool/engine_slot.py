"""An engine's slot in its pool, which remains when the engine is lost and started again."""

import asyncio
from collections.abc import Sequence
from typing import get_args

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.step_clock import ENGINE_WORK, BusyTimes
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.control import MemoryTag
from rlrun.runner.host.background import cancel_all


class EngineSlot:
    """One engine: its client, its load, and whether it can be sent requests.

    `up`     it gets requests
    `down`   it is lost, or an elastic engine that has not joined; its supervisor starts it
    neither  it was started again, and gets requests after the next update of the weights
    """

    def __init__(self, client: EngineClient | None, number: int = 0) -> None:
        """`client`: None for an elastic engine that has not joined yet."""
        self._client = client
        self.load = 0
        """Samples that run on it."""
        self.busy = BusyTimes(f"engine {number}", ENGINE_WORK)
        self.awaits_update = False
        """Whether it is well and waits for the next update of the weights."""
        self.cause: str | None = None
        """Why it was lost, if the pool knows."""
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        (self.down if client is None else self.up).set()
        self._released: set[MemoryTag] = set()
        """The memory that it has released."""

    @property
    def has_joined(self) -> bool:
        """Whether it has a client; only elastic engines may have none."""
        return self._client is not None

    @property
    def client(self) -> EngineClient:
        """The client of an engine that has joined."""
        assert self._client is not None, "the engine has not joined yet"
        return self._client

    @property
    def is_prefill(self) -> bool:
        """Whether it is a prefill server, which generates nothing."""
        return self._client is not None and self._client.serving.role == "prefill"

    def mark_down(self, cause: str | None = None) -> None:
        """Marks the engine as lost: it gets no more requests."""
        self.cause = cause
        self.awaits_update = False
        self.up.clear()
        self.down.set()

    def mark_up(self) -> None:
        """Marks the engine as well: it gets requests."""
        self.awaits_update = False
        self.cause = None
        self.down.clear()
        self.up.set()

    def mark_awaiting_update(self) -> None:
        """Marks the engine as well, but without weights: it gets requests after the next update."""
        self.awaits_update = True
        self.down.clear()

    async def replace_client(self, client: EngineClient) -> None:
        """Takes the client of an engine that was started, or started again, which has all its memory."""
        if self._client is not None:
            await self._client.close()
        self._client = client
        self._released = set()

    async def wait_for_update(self) -> None:
        """Returns when the engine serves the next update. Raises EngineError when that update fails."""
        events = [asyncio.ensure_future(event.wait()) for event in (self.up, self.down)]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(events)
        if self.down.is_set():
            raise EngineError(self.cause or f"engine {self.client.url} was lost")

    async def release_memory(self) -> None:
        """Aborts what runs and releases all memory that the engine still holds."""
        tags = [tag for tag in get_args(MemoryTag) if tag not in self._released]
        if tags:
            await self.client.abort_until_idle()
            await self.client.release_memory(tags)
            self._released = set(get_args(MemoryTag))

    async def resume_memory(self, tags: Sequence[MemoryTag]) -> None:
        """Allocates these kinds of memory again, as far as they were released."""
        released = [tag for tag in tags if tag in self._released]
        if released:
            await self.client.resume_memory(released)
            self._released -= set(released)
