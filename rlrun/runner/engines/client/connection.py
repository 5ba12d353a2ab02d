"""HTTP to an engine, or to a router before several, with a deadline for every call.

Calls that may safely be made twice are repeated, after a moment that grows and is jittered, when the
connection fails; others only when they never reached the engine.
"""

import asyncio
import random

import aiohttp
import orjson

from rlrun.runner.contracts.errors import BadAnswer, EngineError, EngineGone

ATTEMPTS = 4
FIRST_DELAY = 0.1
"""Seconds before the first repetition; doubles each time, times a random factor from 0.5 to 1.5."""
IDLE_SECONDS = 2.0
"""A connection that nobody used for longer is not used again: SGLang servers close theirs after five seconds,
and a request that is on its way then is lost."""
CONTROL_BYTES = 64 << 20
"""The longest answer to a call that generates nothing; a checksum of each tensor is the longest."""
LONGEST_MESSAGE = 500
_OF_ROUTER = "X-SMG-Error-Code"
"""The header of an answer that the sglang-router made up itself, since no engine gave one."""


class Connection:
    """To one engine. Make and use it in one event loop; `close` it."""

    def __init__(self, url: str, api_key: str | None = None, what: str = "engine") -> None:
        """`api_key`: where the engine asks for one; `what`: how messages call it."""
        self.url = url.rstrip("/")
        self.name = f"{what} at {self.url}"
        """As messages call it: `engine 0 at http://127.0.0.1:30000`."""
        # Compressed, a small answer could become a very large one.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """Close the connections; a call that is under way, or comes later, raises EngineGone."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        seconds: float,
        *,
        safe: bool = True,
        attempts: int = ATTEMPTS,
        most: int = CONTROL_BYTES,
    ) -> bytes:
        """The body of the answer, of `most` bytes at most. `safe`: the call may reach the engine twice.

        EngineError when the engine refuses (with its message); BadAnswer when it fails, or its answer is
        longer or breaks off; EngineGone when it cannot be reached; TimeoutError past `seconds`.
        """
        repeatable = aiohttp.ClientConnectionError if safe else aiohttp.ClientConnectorError
        try:
            async with asyncio.timeout(seconds):
                for attempt in range(attempts):
                    try:
                        return await self._once(method, path, body, most)
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

    async def _once(self, method: str, path: str, body: bytes | None, most: int) -> bytes:
        if self._closed:
            raise EngineGone(f"{self.name} is asked nothing more")
        if self._session is None:
            # Deadlines are ours; connections are as many as there are calls.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
                auto_decompress=False,
            )
        url, headers = self.url + path, self._headers
        # A redirect would hand the key and the request to somebody else.
        async with self._session.request(
            method, url, data=body, headers=headers, allow_redirects=False
        ) as response:
            raw = await _read(response, most)
            if raw is None:
                raise BadAnswer(f"{self.name}{path} answered more than {most} bytes")
            if response.status >= 300:
                message = f"{self.name}{path} answered {response.status}: {_message(raw)}"
                raise _error_of(response)(message)
            return raw


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body; None where it is longer than `most` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            response.close()
            return None
        parts.append(part)
    return b"".join(parts)


def _error_of(response: aiohttp.ClientResponse) -> type[EngineError]:
    """What an answer that refuses or fails is raised as."""
    if response.status < 500:
        return EngineError
    return EngineGone if _OF_ROUTER in response.headers else BadAnswer


def _message(raw: bytes) -> str:
    """The message of an error answer, or its beginning, on one line that a terminal can show."""
    try:
        answer = orjson.loads(raw)
        text = str(answer.get("error", {}).get("message") or answer.get("message") or answer)
    except (orjson.JSONDecodeError, AttributeError):
        text = raw[: 4 * LONGEST_MESSAGE].decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text[:LONGEST_MESSAGE])
