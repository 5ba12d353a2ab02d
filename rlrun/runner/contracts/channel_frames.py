"""The messages of a channel: one WebSocket that carries many /generate calls of a client at a time.

    client ──▶ message: [call 7, body] [call 8, body] [call 5, empty: cancelled] ──▶ engine
    client ◀── message: [call 6, 200, answer] [call 8, 400, error] ◀── engine

A message joins the frames that are ready, so that a thousand calls take a few system calls.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

CHANNEL_PATH = "/generate_channel"
MAX_FRAME_BYTES = 64 << 20
"""Longest body or answer on a channel; longer ones need a request of their own."""
_JOINED_BYTES = 1 << 20
"""A message takes no further frames once it is this long."""
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES + 2 * _JOINED_BYTES
_HEADER = struct.Struct("<QII")


class Frame(NamedTuple):
    """A call or its answer.

    Example: `Frame(7, 200, b'[{"output_ids":…}]')`
    """

    call: int
    """Number of the call, which its client chooses and uses once."""
    status: int
    """HTTP status of an answer; 0 in a frame of the client."""
    body: bytes
    """Empty in a frame of the client: the call is cancelled, and gets no answer."""


def read_frames(message: bytes) -> Iterator[Frame]:
    """Yields the frames of a message. Raises ValueError if its end is cut off."""
    start = 0
    while start < len(message):
        body_start = start + _HEADER.size
        if body_start > len(message):
            raise ValueError(f"a frame's header is cut off at byte {len(message)}")
        call, status, length = _HEADER.unpack_from(message, start)
        start = body_start + length
        if start > len(message):
            raise ValueError(f"a frame of {length} bytes is cut off at byte {len(message)}")
        yield Frame(call, status, message[body_start:start])


class FrameWriter:
    """Queues frames, and sends those that have gathered while the last message was sent."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """`send` sends one message, and returns when the socket can take the next one."""
        self._send = send
        self._queue: list[bytes] = []
        self._is_queued = asyncio.Event()

    def put(self, frame: Frame) -> None:
        """Queues a frame; frames are sent in order."""
        self._queue += (_HEADER.pack(frame.call, frame.status, len(frame.body)), frame.body)
        self._is_queued.set()

    async def run(self) -> None:
        """Sends frames; never returns. Raises the errors of `send`."""
        while True:
            await self._is_queued.wait()
            self._is_queued.clear()
            await self.flush()

    async def flush(self) -> None:
        """Sends the frames that are queued now."""
        queue, self._queue = self._queue, []
        first, size = 0, 0
        for end, part in enumerate(queue, 1):
            size += len(part)
            # Headers and bodies alternate: a message ends after a body.
            if end == len(queue) or (size >= _JOINED_BYTES and end % 2 == 0):
                await self._send(b"".join(queue[first:end]))
                first, size = end, 0
