"""The engine's side of a channel (rlrun.runner.contracts.channel_frames): /generate without a request each.

client ──frames──▶ a task for each call ──▶ GenerationEndpoints.answer
       ◀─frames── the answers that are done
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import WSMsgType, web

from rlrun.runner.contracts.channel_frames import (
    CHANNEL_PATH,
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    Frame,
    FrameWriter,
    read_frames,
)
from rlrun.runner.engines.native.http.bodies import EngineFailure, error_body, parse_body
from rlrun.runner.host.background import cancel_all

Answer = Callable[[dict[str, Any]], Awaitable[bytes]]
"""Returns the answer to the body of a call. Raises ValueError for a body that the client can correct."""
_LAST_ANSWERS_SECONDS = 1.0
"""How long a server that stops waits for the answers to samples that it has aborted."""
_log = logging.getLogger(__name__)


class ChannelEndpoint:
    """Serves the channels of any number of clients. A client that disconnects cancels its calls."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._channels: set[_ServedChannel] = set()

    def add_to(self, app: web.Application) -> None:
        """Adds the route, and closes the channels when the server stops."""
        app.add_routes([web.get(CHANNEL_PATH, self._connect)])
        app.on_shutdown.append(self._close)

    async def _connect(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=MAX_MESSAGE_BYTES)
        await socket.prepare(request)
        channel = _ServedChannel(socket, self._answer)
        self._channels.add(channel)
        try:
            await channel.serve()
        finally:
            self._channels.discard(channel)
        return socket

    async def _close(self, _: web.Application) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))


class _ServedChannel:
    """One client's WebSocket and the calls that it has not got answers to."""

    def __init__(self, socket: web.WebSocketResponse, answer: Answer) -> None:
        self._socket = socket
        self._answer = answer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._writer = FrameWriter(socket.send_bytes)

    async def serve(self) -> None:
        """Answers calls until the client disconnects, or sends something other than frames."""
        writing = asyncio.create_task(self._writer.run())
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY:
                    break
                for frame in read_frames(message.data):
                    self._take(frame)
        except ValueError as error:  # the boundary to the client
            _log.warning("a channel is closed: its client sent %s", error)
        finally:
            await cancel_all([writing, *self._calls.values()])
            await self._socket.close()

    async def close(self) -> None:
        """Sends the last answers and closes the WebSocket."""
        if self._calls:
            await asyncio.wait(self._calls.values(), timeout=_LAST_ANSWERS_SECONDS)
        await self._writer.flush()
        await self._socket.close()

    def _take(self, frame: Frame) -> None:
        """Begins a call, or cancels it if the frame is empty. Raises ValueError for a number in use."""
        if frame.body and frame.call in self._calls:
            raise ValueError(f"call {frame.call} a second time, before its answer")
        if frame.body:
            call = self._calls[frame.call] = asyncio.create_task(self._serve_call(frame))
            call.add_done_callback(lambda _: self._calls.pop(frame.call))
        elif frame.call in self._calls:
            self._calls[frame.call].cancel()

    async def _serve_call(self, frame: Frame) -> None:
        try:
            status, body = 200, await self._answer(parse_body(frame.body))
        except ValueError as error:
            status, body = 400, error_body(str(error))
        except EngineFailure as error:
            status, body = 500, error_body(str(error))
        except Exception as error:  # a bug must not end the calls of all others
            _log.exception("a call failed")
            status, body = 500, error_body(f"{type(error).__name__}: {error}")
        if len(body) > MAX_FRAME_BYTES:
            status, body = 400, error_body(f"an answer of {len(body)} bytes is too long for a channel")
        self._writer.put(Frame(frame.call, status, body))
