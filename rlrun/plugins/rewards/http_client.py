"""A client for rewards and tools that call a service with JSON over HTTP; it retries, within limits."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field

from rlrun.models.json_files import parse_json
from rlrun.plugins.failures import Failure, InfrastructureError
from rlrun.specs.reading.literal_secrets import mask_secrets
from rlrun.specs.sections.section import Section

MAX_PAUSE = 30.0
MAX_ASKED_PAUSE = 120.0
"""Longest pause in seconds that a service may ask for; after it a request is sent anyway."""
MAX_FAILURE_LENGTH = 300
"""Longest text of a failure, which is cut after secrets are masked: a part of one would not be found."""
MAX_NUMBER = 1e300
"""Rewards must be below this, which also excludes NaN and whole numbers that no float can hold."""
MAX_BYTES = 16 << 20
"""Size limit of an answer, in bytes."""


class AskParams(Section):
    """How requests are sent."""

    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of every request; keep secrets out of the file: `{ Authorization = "Bearer ${env:TOKEN}" }`."""
    attempts: int = Field(default=10, ge=1)
    """How often a request is sent, including the first time; `scoring.timeout` may end it sooner."""
    connections: int = Field(default=64, ge=1)
    """How many requests each reward process has in flight at a time."""


class HttpParams(AskParams):
    """Which service is called, and how."""

    url: str = Field(pattern=r"https?://.+")
    """Address of the service."""


class _StatusError(ValueError):
    """A status other than 200. `pause`: the seconds that the service asks to wait, 0 if it does not."""

    def __init__(self, message: str, pause: float | None) -> None:
        super().__init__(message)
        self.pause = pause or 0.0


class HttpClient:
    """Posts JSON repeatedly, with growing pauses, until the service answers."""

    def __init__(
        self,
        params: AskParams,
        sleep: Callable[[float], Any] = asyncio.sleep,
        *,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`tell` is called with a text for each failure. None: print to standard output, which is a reward's
        log.
        """
        import aiohttp  # needs the run extra; checking a spec does not

        self._aiohttp = aiohttp
        self._params = params
        self._sleep = sleep
        self._tell = tell or partial(print, flush=True)
        self._session: Any = None

    async def post(
        self, url: str, body: Any, read: Callable[[Any], Any], headers: Mapping[str, str] | None = None
    ) -> Any:
        """Returns the result of `read` for the JSON that the service answers. Raises InfrastructureError with
        the last failure.

        Every failure is followed by another attempt: no connection, a status other than 200, invalid JSON, a
        ValueError of `read`. The pauses are 1, 2, 4, … s, at most 30, each plus a random fraction of a
        second; a longer `Retry-After` of the service counts, up to two minutes. If the call is cancelled
        after a failure, the exception has its type and a note with its text.
        """
        failures: list[str] = []
        asked = 0.0
        try:
            while len(failures) < self._params.attempts:
                if failures:
                    pause = max(asked, min(2.0 ** (len(failures) - 1), MAX_PAUSE))
                    await self._sleep(pause + random.random())
                try:
                    return read(await self._once(url, body, headers))
                except (self._aiohttp.ClientError, OSError, ValueError) as error:
                    failure = _described(error)
                    failures.append(self._hidden(failure, url, headers)[:MAX_FAILURE_LENGTH])
                    asked = error.pause if isinstance(error, _StatusError) else 0.0
                    self._tell(f"{display_url(url)}, attempt {len(failures)}: {failures[-1]}")
        except asyncio.CancelledError as end:
            if failures:
                end.add_note(_no_answer(display_url(url), failures))
                end.failure = Failure.SERVICE  # type: ignore[attr-defined]  # failure_of reads it
            raise
        raise InfrastructureError(_no_answer(display_url(url), failures))

    def _hidden(self, text: str, url: str, headers: Mapping[str, str] | None) -> str:
        """Returns a failure's text without secrets of the address and values of the headers, which some
        services echo.
        """
        text = text.replace(url, display_url(url))
        for value in (*self._params.headers.values(), *(headers or {}).values()):
            for secret in (value, value.rpartition(" ")[2]):
                text = text.replace(secret, "***") if len(secret) >= 6 else text
        return mask_secrets(text)

    async def _once(self, url: str, body: Any, headers: Mapping[str, str] | None) -> Any:
        if self._session is None:
            connector = self._aiohttp.TCPConnector(limit=self._params.connections)
            self._session = self._aiohttp.ClientSession(
                connector=connector,
                timeout=self._aiohttp.ClientTimeout(total=None),
                headers=self._params.headers,
            )
        # A redirect would send the headers, and the keys in them, to another host.
        async with self._session.post(url, json=body, headers=headers, allow_redirects=False) as response:
            raw = await read_body(response)
            if response.status != 200:
                text = f"HTTP {response.status}: {raw.decode(errors='replace')}"
                raise _StatusError(text, retry_after(response.headers))
            return parse_json(raw)

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def display_url(url: str) -> str:
    """Returns an address without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


async def read_body(response: Any) -> bytes:
    """Returns the body. Raises ValueError if it is too long."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_BYTES:
            raise ValueError(f"HTTP {response.status}: the answer has more than {MAX_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that a service asks to wait, at most MAX_ASKED_PAUSE; None if it does not ask.

    RFC 9110, section 10.2.3: a number of seconds, or a date.
    """
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), MAX_ASKED_PAUSE) if math.isfinite(seconds) else None


def _described(error: Exception) -> str:
    if isinstance(error, _StatusError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _no_answer(url: str, failures: Sequence[str]) -> str:
    return f"{url} gave no answer in {attempts(len(failures))}; the last: {failures[-1]}"


def attempts(count: int) -> str:
    """Returns a number of attempts in words."""
    return f"{count} attempt{'' if count == 1 else 's'}"


def number_or_table(answer: Any) -> float | Mapping[str, float | str]:
    """Returns a reward as services send it: a number, or a table. Raises ValueError for anything else."""
    if isinstance(answer, int | float) and abs(answer) < MAX_NUMBER:
        return float(answer)
    if isinstance(answer, dict) and any(isinstance(value, int | float) for value in answer.values()):
        return answer
    raise ValueError(f"not a reward: {answer}")
