"""HTTP calls to an engine, or to a router in front of several, each with a deadline.

When the connection fails, a call that may safely reach the engine twice is repeated, with growing, jittered
pauses. Any other call is repeated only if it never reached the engine.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
import orjson

from rlrun.runner.contracts.channel_frames import CHANNEL_PATH, MAX_MESSAGE_BYTES
from rlrun.runner.contracts.errors import BadAnswer, EngineError, EngineGone
from rlrun.runner.engines.client.channel import Channel

ATTEMPTS = 4
FIRST_DELAY = 0.1
"""Seconds before the first repetition; doubles each time, times a random factor from 0.5 to 1.5."""
IDLE_SECONDS = 2.0
"""Connections idle for longer are not reused: SGLang servers close them after five seconds, and a request
that is being sent at that moment is lost."""
MAX_CONTROL_BYTES = 64 << 20
"""Limit for answers to calls that generate nothing; the longest has a checksum for each tensor."""
MAX_MESSAGE_CHARS = 500
_OPEN_SECONDS, _CLOSE_SECONDS = 30.0, 0.5
"""Deadlines for an engine to open a channel, and to confirm that it is closed."""
_REDIRECTS = {301, 302, 303, 307, 308}
_ROUTER_ERROR_HEADER = "X-SMG-Error-Code"
"""Header of an error that the sglang-router itself answers with, because no engine answered."""


class Connection:
    """A connection to one engine. Create and use it in one event loop, and `close` it."""

    def __init__(self, url: str, api_key: str | None = None, what: str = "engine") -> None:
        """`api_key`: the key that the engine asks for, if any. `what`: its name in messages."""
        self.url = url.rstrip("/")
        self.name = f"{what} at {self.url}"
        """Its name in messages: `engine 0 at http://127.0.0.1:30000`."""
        # Refuses compression: a small compressed answer could expand to a very large one.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._opened_session: aiohttp.ClientSession | None = None
        self._channel = Channel(self._open_socket)
        self._closed = False

    async def close(self) -> None:
        """Closes the connections; calls in progress and later calls raise EngineGone."""
        self._closed = True
        await self._channel.close()
        if self._opened_session is not None:
            await self._opened_session.close()
            self._opened_session = None

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        seconds: float,
        *,
        safe: bool = True,
        attempts: int = ATTEMPTS,
        max_bytes: int = MAX_CONTROL_BYTES,
    ) -> bytes:
        """Returns the body of the answer. `safe`: the call may reach the engine twice.

        Raises EngineError when the engine refuses (with its message), BadAnswer when it fails or its answer
        is cut off or longer than `max_bytes`, EngineGone when it cannot be reached, TimeoutError after
        `seconds`.
        """
        once = partial(self._call_once, method, path, body, max_bytes)
        return await self._call_repeatedly(once, path, seconds, safe=safe, attempts=attempts)

    async def call_on_channel(self, body: bytes, seconds: float, *, safe: bool, max_bytes: int) -> bytes:
        """Like `call` of /generate, over the channel that all calls to one of rlrun's own engines share."""
        once = partial(self._call_channel_once, body, max_bytes)
        return await self._call_repeatedly(once, "/generate", seconds, safe=safe, attempts=ATTEMPTS)

    async def _call_repeatedly(
        self, once: Callable[[], Awaitable[bytes]], path: str, seconds: float, *, safe: bool, attempts: int
    ) -> bytes:
        repeatable = aiohttp.ClientConnectionError if safe else aiohttp.ClientConnectorError
        try:
            async with asyncio.timeout(seconds):
                for attempt in range(attempts):
                    try:
                        return await once()
                    except repeatable as error:
                        if attempt == attempts - 1:
                            raise EngineGone(f"{self.name}{path} cannot be reached: {error}") from error
                        await asyncio.sleep(FIRST_DELAY * 2**attempt * random.uniform(0.5, 1.5))
                    except aiohttp.ClientConnectionError as error:
                        raise EngineGone(f"{self.name}{path}: {error!r}") from error
                    except aiohttp.ClientError as error:
                        raise BadAnswer(f"{self.name}{path}: {error!r}") from error
        except TimeoutError:
            raise TimeoutError(f"{self.name}{path} did not answer within {seconds:g} s") from None
        raise AssertionError("unreachable: every attempt returns or raises")

    async def _call_once(self, method: str, path: str, body: bytes | None, max_bytes: int) -> bytes:
        async with self._session.request(
            method, self.url + path, data=body, headers=self._headers
        ) as response:
            raw = await _read(response, max_bytes)
            return self._checked(
                path, response.status, raw, max_bytes, _ROUTER_ERROR_HEADER in response.headers
            )

    async def _call_channel_once(self, body: bytes, max_bytes: int) -> bytes:
        if self._closed:
            raise EngineGone(f"{self.name}: the connection is closed")
        frame = await self._channel.call(body)
        raw = frame.body if len(frame.body) <= max_bytes else None
        return self._checked("/generate", frame.status, raw, max_bytes)

    def _checked(
        self, path: str, status: int, raw: bytes | None, max_bytes: int, from_router: bool = False
    ) -> bytes:
        """Returns the body of an answer; None was too long. Raises the error that an answer stands for."""
        if raw is None:
            raise BadAnswer(f"{self.name}{path} answered more than {max_bytes} bytes")
        if status >= 300:
            raise _error_class(status, from_router)(f"{self.name}{path} answered {status}: {_message(raw)}")
        return raw

    @property
    def _session(self) -> aiohttp.ClientSession:
        """The HTTP session, opened with the first call. Raises EngineGone after `close`."""
        if self._closed:
            raise EngineGone(f"{self.name}: the connection is closed")
        if self._opened_session is None:
            # `call` keeps the deadlines. The number of connections is not limited: a generation may hold one
            # for minutes, and an abort must not wait behind it.
            self._opened_session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
                auto_decompress=False,
                middlewares=[self._refuse_redirect],
            )
        return self._opened_session

    async def _refuse_redirect(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Raises EngineError for a redirect, which would send the key and the request to another server."""
        response = await handler(request)
        if response.status in _REDIRECTS:
            response.close()
            message = f"answered {response.status}: rlrun follows no redirects"
            raise EngineError(f"{self.name}{request.url.path} {message}")
        return response

    async def _open_socket(self) -> aiohttp.ClientWebSocketResponse[bool]:
        """Returns a WebSocket for a channel. Raises EngineError if the engine refuses it."""
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                return await self._session.ws_connect(
                    self.url + CHANNEL_PATH,
                    headers=self._headers,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
                    max_msg_size=MAX_MESSAGE_BYTES,
                )
        except TimeoutError:
            raise EngineGone(f"{self.name} did not open a channel within {_OPEN_SECONDS:g} s") from None
        except aiohttp.WSServerHandshakeError as error:
            message = f"{self.name}{CHANNEL_PATH} answered {error.status}: it opens no channel"
            raise _error_class(error.status)(message) from error


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """Returns the body, or None if it is longer than `max_bytes`."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > max_bytes:
            response.close()
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _error_class(status: int, from_router: bool = False) -> type[EngineError]:
    """Returns the class of error that an answer with an error status is raised as."""
    if status < 500:
        return EngineError
    return EngineGone if from_router else BadAnswer


def _message(raw: bytes) -> str:
    """Returns the message of an error answer, shortened, on one line without control characters."""
    try:
        answer = orjson.loads(raw)
        text = str(answer.get("error", {}).get("message") or answer.get("message") or answer)
    except (orjson.JSONDecodeError, AttributeError, RecursionError):
        text = raw[: 4 * MAX_MESSAGE_CHARS].decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text[:MAX_MESSAGE_CHARS])
