"""What a reward process says, line by line, each by a deadline."""

import asyncio
import json
from contextlib import suppress
from typing import Any

GRACE = 0.05
"""Seconds for an answer that has arrived but waits unread because the event loop was busy."""


class ProcessOutput:
    """The JSON lines of a process from now on."""

    def __init__(self, stdout: asyncio.StreamReader) -> None:
        self.ended = False
        """The process closed its end."""
        self._stdout = stdout
        self._unread: list[bytes] = []
        self._rest = b""

    async def next(self, deadline: float) -> dict[str, Any] | None:
        """The next line, by `deadline` on the event loop's clock; None at the end, or where none has come."""
        while not self._unread:
            data = await self._read(deadline)
            if not data:
                self.ended = data is not None
                return None
            *self._unread, self._rest = (self._rest + data).split(b"\n")
        answer: dict[str, Any] = json.loads(self._unread.pop(0))
        return answer

    async def _read(self, deadline: float) -> bytes | None:
        """What has arrived by then, with a moment's grace; empty at the end, None for nothing."""
        for limit in (deadline, asyncio.get_running_loop().time() + GRACE):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(limit):
                    return await self._stdout.read(1 << 16)
        return None
