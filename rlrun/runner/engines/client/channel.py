"""The client's side of a channel (rlrun.runner.contracts.channel_frames).

    call ──▶ frame ──▶ one WebSocket ──▶ engine
    call ◀── frame with the call's number ◀── as soon as its samples are done

A call that is cancelled here is cancelled in the engine too, as a request whose connection is closed.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import aiohttp

from rlrun.runner.contracts.channel_frames import Frame, FrameWriter, read_frames
from rlrun.runner.host.background import cancel_all

_MAX_QUOTED = 200
"""Characters of an unexpected message that an error quotes."""
Socket = aiohttp.ClientWebSocketResponse[bool]


class Channel:
    """Calls over one WebSocket. The first call opens it; the next call after it broke opens another one."""

    def __init__(self, connect: Callable[[], Awaitable[Socket]]) -> None:
        """`connect` returns an open WebSocket within a deadline of its own."""
        self._connect = connect
        self._current: _OpenChannel | None = None
        self._opening: asyncio.Task[_OpenChannel] | None = None

    async def call(self, body: bytes) -> Frame:
        """Returns the answer to a call.

        Raises the errors of `connect` if the call was not sent, ClientConnectionError if the WebSocket broke
        before the answer, ClientPayloadError if the engine sends something other than frames.
        """
        current = self._current
        if current is None or current.is_broken:
            current = await self._open()
        return await current.call(body)

    async def close(self) -> None:
        """Closes the WebSocket; the calls in progress raise ClientConnectionError."""
        if self._opening is not None:
            await cancel_all([self._opening])
        if self._current is not None:
            await self._current.close()

    async def _open(self) -> "_OpenChannel":
        """Returns an open channel; calls that come meanwhile wait for the same one."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._connected())
        return await asyncio.shield(self._opening)

    async def _connected(self) -> "_OpenChannel":
        self._current = _OpenChannel(await self._connect())
        return self._current


class _OpenChannel:
    """A WebSocket with the calls that wait for their answers."""

    def __init__(self, socket: Socket) -> None:
        self.is_broken = False
        self._socket = socket
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        self._writer = FrameWriter(socket.send_bytes)
        self._running = asyncio.create_task(self._run())

    async def call(self, body: bytes) -> Frame:
        number = next(self._numbers)
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._writer.put(Frame(number, 0, body))
        try:
            return await answer
        except asyncio.CancelledError:
            self._writer.put(Frame(number, 0, b""))
            raise
        finally:
            self._answers.pop(number, None)

    async def close(self) -> None:
        await cancel_all([self._running])

    async def _run(self) -> None:
        """Sends and receives until the WebSocket breaks."""
        writing = asyncio.create_task(self._writer.run())
        error: Exception = aiohttp.ClientConnectionResetError("the channel was closed")
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    shown = repr(message.data)[:_MAX_QUOTED]
                    raise ValueError(f"a message of type {message.type!r}: {shown}")
                self._settle(message.data)
        except ValueError as invalid:  # the boundary to the engine
            error = aiohttp.ClientPayloadError(str(invalid))
        finally:
            self.is_broken = True
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(error)
            await cancel_all([writing])
            await self._socket.close()

    def _settle(self, message: bytes) -> None:
        """Hands each answer to its call; a call that was cancelled meanwhile has none waiting."""
        for frame in read_frames(message):
            answer = self._answers.get(frame.call)
            if answer is not None and not answer.done():
                answer.set_result(frame)
