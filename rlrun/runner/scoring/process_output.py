"""Reads the lines that a reward process writes, each by a deadline."""

import asyncio
import json
from contextlib import suppress
from typing import Any

GRACE = 0.05
"""Seconds after a deadline to read an answer that arrived in time, while the event loop was busy."""


class ProcessOutput:
    """The JSON lines that a process writes to its standard output."""

    def __init__(self, stdout: asyncio.StreamReader) -> None:
        self.ended = False
        """The process closed its standard output."""
        self._stdout = stdout
        self._unread: list[bytes] = []
        self._partial_line = b""

    async def next(self, deadline: float) -> dict[str, Any] | None:
        """Returns the next line; None at the end of the output, or at `deadline` (event loop's clock)."""
        while not self._unread:
            data = await self._read(deadline)
            if not data:
                self.ended = data is not None
                return None
            *self._unread, self._partial_line = (self._partial_line + data).split(b"\n")
        answer: dict[str, Any] = json.loads(self._unread.pop(0))
        return answer

    async def _read(self, deadline: float) -> bytes | None:
        """Returns the bytes that arrive by `deadline`, plus GRACE; b"" at the end, None if there are none."""
        for limit in (deadline, asyncio.get_running_loop().time() + GRACE):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(limit):
                    return await self._stdout.read(1 << 16)
        return None
