"""An engine's seat in its pool, which stays when the engine is lost and started again."""

import asyncio
from typing import get_args

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.client.client import EngineClient, Tag
from rlrun.runner.host.background import cancel_all


class EngineSlot:
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
        self._asleep: set[Tag] = set()
        """What it has no memory for."""

    def lose(self, cause: str | None = None) -> None:
        """Ask it nothing more."""
        self.cause = cause
        self.waits = False
        self.up.clear()
        self.down.set()

    def find(self) -> None:
        """Ask it again."""
        self.waits = False
        self.cause = None
        self.down.clear()
        self.up.set()

    async def replace(self, client: EngineClient) -> None:
        """The engine was started again: awake, and reached by another client."""
        await self.client.close()
        self.client = client
        self._asleep = set()

    def wait_for_update(self) -> None:
        """It is well, and asked nothing before it has the next weights."""
        self.waits = True
        self.down.clear()

    async def updated(self) -> None:
        """Return once the next update went well. EngineError when it did not."""
        events = [asyncio.ensure_future(event.wait()) for event in (self.up, self.down)]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(events)
        if self.down.is_set():
            raise EngineError(self.cause or f"engine {self.client.url} was lost")

    async def release(self) -> None:
        """Have it give away the memory that it still has."""
        tags = [tag for tag in get_args(Tag) if tag not in self._asleep]
        if tags:
            await self.client.settle()
            await self.client.release_memory(tags)
            self._asleep = set(get_args(Tag))

    async def take_back(self, tag: Tag) -> None:
        """Have it take that memory again, if it gave it away."""
        if tag in self._asleep:
            await self.client.resume_memory([tag])
            self._asleep.discard(tag)
