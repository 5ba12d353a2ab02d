"""All engines of a job as one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from rlrun.runner.carriers import GenerateRequest, Generation, SerializedWeights, WeightUpdate
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.errors import EngineError

T = TypeVar("T")


class EnginePool:
    """Routes requests over engines, and tells all of them what concerns all."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        assert clients, "a pool needs an engine"
        self._clients = list(clients)
        self._loads = [0] * len(self._clients)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """The n samples of one request, on the engine with the fewest samples running."""
        engine = min(range(len(self._clients)), key=self._loads.__getitem__)
        return (await self._on(engine, [request]))[0]

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """All requests, one call an engine: which runs what together depends on nothing but their order."""
        size = -(-len(requests) // len(self._clients)) or 1
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        answers = await asyncio.gather(*(self._on(engine, part) for engine, part in enumerate(parts)))
        return [generations for part in answers for generations in part]

    async def abort_all(self) -> None:
        """End every running request; each answers with what it has."""
        await self._all(lambda client: client.abort_all())

    async def pause(self, mode: Literal["abort", "in_place", "retract"] = "in_place") -> None:
        """Stop generating until `resume`."""
        await self._all(lambda client: client.pause(mode))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._all(lambda client: client.resume())

    async def flush_cache(self) -> None:
        """Forget cached prefixes. EngineError while requests run."""
        await self._all(lambda client: client.flush_cache())

    async def health(self) -> dict[str, bool]:
        """Whether each engine works, by URL."""
        states = await self._all(lambda client: client.health())
        return {client.url: state for client, state in zip(self._clients, states, strict=True)}

    async def update_weights(self, update: WeightUpdate) -> int:
        """Serve new weights from the next forward pass on; the version all engines confirm."""
        count = len(self._clients)
        shares = [
            update.share(engine, count) if isinstance(update, SerializedWeights) else update
            for engine in range(count)
        ]
        updates = [client.update_weights(own) for client, own in zip(self._clients, shares, strict=True)]
        return self._agreed(await asyncio.gather(*updates))

    async def update_weights_from_disk(self, folder: str, version: int) -> int:
        """Serve a folder's weights; the version all engines confirm."""
        return self._agreed(await self._all(lambda client: client.update_weights_from_disk(folder, version)))

    async def close(self) -> None:
        """Close the connections; the engines go on."""
        await self._all(lambda client: client.close())

    async def _on(self, engine: int, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        samples = sum(len(request.seeds) for request in requests)
        self._loads[engine] += samples
        try:
            return await self._clients[engine].generate_batch(requests)
        finally:
            self._loads[engine] -= samples

    async def _all(self, call: Callable[[EngineClient], Awaitable[T]]) -> list[T]:
        return list(await asyncio.gather(*(call(client) for client in self._clients)))

    def _agreed(self, versions: Sequence[int]) -> int:
        if len(set(versions)) > 1:
            pairs = zip(self._clients, versions, strict=True)
            listed = ", ".join(f"{client.url}: {version}" for client, version in pairs)
            raise EngineError(f"engines serve different weights after an update ({listed})")
        return versions[0]
