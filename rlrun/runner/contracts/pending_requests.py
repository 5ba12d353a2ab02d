"""Which of the requests that wait for answers the engines work on, and which still queue in an engine.

    asked first ──▶ [ being worked on: at most `capacity` samples ] [ queueing ] ◀── asked last

Engines do not say when they take a request out of their queue. They take requests in the order in which these
come, so a request is taken at the latest when it and the unfinished ones before it fit into all engines.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class PendingRequests:
    """The requests that have not been answered, in the order in which they were asked."""

    def __init__(self, capacity: int | None = None) -> None:
        """`capacity`: samples that all engines decode together; None: they take every request at once."""
        self.capacity = capacity
        self._running = 0
        """Samples of the requests that have been taken."""
        self._queued: dict[asyncio.Future[None], int] = {}
        """The requests that queue, with their samples."""

    @contextmanager
    def enter(self, samples: int) -> Iterator[asyncio.Future[None]]:
        """Keeps a request in the line; the future is done when the engines have taken the request."""
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued[taken] = samples
        self._advance()
        try:
            yield taken
        finally:
            if self._queued.pop(taken, None) is None:
                self._running -= samples
            self._advance()

    def _advance(self) -> None:
        """Lets the engines take the next requests, as far as they have room; a larger one goes alone."""
        while self._queued:
            taken, samples = next(iter(self._queued.items()))
            if self.capacity is not None and self._running and self._running + samples > self.capacity:
                return
            del self._queued[taken]
            self._running += samples
            if not taken.done():
                taken.set_result(None)
