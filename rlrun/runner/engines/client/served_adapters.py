"""The adapters of several versions that one SGLang server has at a time, and the requests that use them.

    version     loaded ──▶ current ──▶ a newer one is current ──▶ its last request ends ──▶ unloaded
    requests               begin with it ─────────────────────▶ end with it

A request names the current version's adapters when it is sent, and keeps them to its end: nothing is paused,
and the server keys its prefix cache by the adapters, so that no version reads another's cache.

An unload makes the server wait for the requests that use the adapters, and a load waits behind it (one lock
for both). So a version is unloaded only after its last request has ended. Where a server would have more
versions than it has room for, the requests of the oldest one are aborted: they are older than `max_staleness`
allows, and would be dropped. The server itself would evict the least recently used version silently.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.contracts.weight_updates import AdapterVersion
from rlrun.runner.host.background import cancel_all
from rlrun.runner.weights.carriers.bodies import adapter_name

Post = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Makes a control call of the server, given its path and body."""
_ABORT_SECONDS, _ABORT_INTERVAL = 30.0, 0.2
logger = logging.getLogger(__name__)


class ServedAdapters:
    """Loads, uses and unloads the adapters of one server; without any, requests use the model alone."""

    def __init__(self, post: Post, name: str) -> None:
        """`name`: the server's name in messages."""
        self._post, self._name = post, name
        self._current: int | None = None
        self._calls: dict[int, dict[object, Sequence[str]]] = {}
        """The calls that use each loaded version, each with the ids of its samples; in order of loading."""
        self._abandoned: dict[int, list[str]] = {}
        """Ids of samples whose call ended without an answer: the server may still generate them."""
        self._unloads: dict[int, asyncio.Task[None]] = {}
        self._has_loaded = False
        self._is_open = asyncio.Event()
        self._is_open.set()

    @property
    def versions(self) -> list[int]:
        """The versions that the server has, in order."""
        return sorted(self._calls)

    @asynccontextmanager
    async def use(self, sample_ids: Sequence[str] = ()) -> AsyncIterator[int | None]:
        """Yields the version whose adapters a call names; None if the server has none.

        The version stays loaded within the context. Raises EngineGone if its adapters could not be replaced.
        """
        await self._is_open.wait()
        version = self._current
        if version is None:
            if self._has_loaded:
                raise EngineGone(f"{self._name} has no adapters: the last update failed")
            yield None
            return
        call = object()
        self._calls[version][call] = sample_ids
        try:
            yield version
        except BaseException:
            self._abandoned.setdefault(version, []).extend(sample_ids)
            raise
        finally:
            del self._calls[version][call]
            self._unload_idle()

    async def load(self, update: AdapterVersion, send: Callable[[], Awaitable[None]]) -> None:
        """Makes room for a version, loads it by `send`, and makes it current.

        Raises EngineError if the server refuses it, TimeoutError if requests do not end when aborted.
        """
        version = update.version
        if version in self._calls:  # a trainer that was started again counts from its last checkpoint on
            self._is_open.clear()
            self._current = None if self._current == version else self._current
        try:
            while version in self._calls or len(self._calls) >= update.room:
                oldest = next(iter(self._calls))
                await self._end(version if version in self._calls else oldest)
            await send()
            self._calls[version] = {}
            self._current, self._has_loaded = version, True
        finally:
            self._is_open.set()
        self._unload_idle()

    async def close(self) -> None:
        """Stops unloading."""
        await cancel_all(list(self._unloads.values()))

    async def _end(self, version: int) -> None:
        """Aborts the calls that use a version, waits for them, and unloads it."""
        deadline = asyncio.get_running_loop().time() + _ABORT_SECONDS
        while self._calls.get(version):
            await self._abort([name for ids in self._calls[version].values() for name in ids])
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(
                    f"{self._name} still generates with {adapter_name(version)} {_ABORT_SECONDS:g} s after "
                    "it was told to abort"
                )
            await asyncio.sleep(_ABORT_INTERVAL)
        if version in self._calls:  # otherwise it was unloaded when its last call ended
            await (self._unloads.get(version) or self._begin_unload(version))

    def _unload_idle(self) -> None:
        """Begins to unload the versions that are not current and that no call uses."""
        for version, calls in self._calls.items():
            if version != self._current and not calls and version not in self._unloads:
                self._begin_unload(version)

    def _begin_unload(self, version: int) -> "asyncio.Task[None]":
        self._unloads[version] = asyncio.create_task(self._unload(version))
        return self._unloads[version]

    async def _unload(self, version: int) -> None:
        try:
            await self._abort(self._abandoned.pop(version, []))
            await self._post("/unload_lora_adapter", {"lora_name": adapter_name(version)})
        except (EngineError, TimeoutError) as error:  # the server is gone, or the next load fails too
            logger.info("%s did not unload %s: %s", self._name, adapter_name(version), error)
        finally:
            self._calls.pop(version, None)
            self._unloads.pop(version, None)

    async def _abort(self, sample_ids: Sequence[str]) -> None:
        await asyncio.gather(*(self._post("/abort_request", {"rid": name}) for name in sample_ids))
