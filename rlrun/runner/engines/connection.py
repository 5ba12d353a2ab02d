"""HTTP to an engine, with a deadline for every call.

Calls that may safely be made twice are repeated, after a moment that grows and is jittered, when the
connection fails; others only when they never reached the engine.
"""

import asyncio
import random

import aiohttp
import orjson

from rlrun.runner.errors import EngineError, EngineGone

ATTEMPTS = 4
FIRST_DELAY = 0.1
"""Seconds before the first repetition; doubles each time, times a random factor from 0.5 to 1.5."""


class Connection:
    """To one engine. Make and use it in one event loop; `close` it."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`api_key`: where the engine asks for one."""
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
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
    ) -> bytes:
        """The body of the answer. `safe`: the call may reach the engine twice.

        EngineError when the engine refuses (with its message) or fails; EngineGone when it cannot be reached;
        TimeoutError past `seconds`.
        """
        repeatable = aiohttp.ClientConnectionError if safe else aiohttp.ClientConnectorError
        try:
            async with asyncio.timeout(seconds):
                for attempt in range(attempts):
                    try:
                        return await self._once(method, path, body)
                    except repeatable as error:
                        if attempt == attempts - 1:
                            raise EngineGone(f"engine {self.url}{path} cannot be reached: {error}") from error
                        await asyncio.sleep(FIRST_DELAY * 2**attempt * random.uniform(0.5, 1.5))
                    except aiohttp.ClientConnectionError as error:
                        raise EngineGone(f"engine {self.url}{path}: {error!r}") from error
                    except aiohttp.ClientError as error:
                        raise EngineError(f"engine {self.url}{path}: {error!r}") from error
        except TimeoutError:
            raise TimeoutError(f"engine {self.url}{path} did not answer within {seconds:g} s") from None
        raise AssertionError("unreachable: every attempt returns or raises")

    async def _once(self, method: str, path: str, body: bytes | None) -> bytes:
        if self._session is None:
            # Deadlines are ours; connections are as many as there are calls.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
            )
        url = self.url + path
        async with self._session.request(method, url, data=body, headers=self._headers) as response:
            raw = await response.read()
            if response.status != 200:
                message = f"engine {self.url}{path} answered {response.status}: {_message(raw)}"
                raise EngineError(message)
            return raw


def _message(raw: bytes) -> str:
    """The message of an error answer, or its beginning."""
    try:
        answer = orjson.loads(raw)
        return str(answer.get("error", {}).get("message") or answer.get("message") or answer)
    except (orjson.JSONDecodeError, AttributeError):
        return raw[:500].decode(errors="replace")
