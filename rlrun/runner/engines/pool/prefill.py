"""Sends requests to pairs of a prefill and a decode server, where servers of these roles are apart.

    EnginePool ─┬─request, rooms──▶ prefill server ──caches of the prompts──▶ decode server
                └─request, rooms──▶ decode server ──answer──▶ EnginePool

The router (rlrun.runner.engines.pool.routing) chooses the decode server and counts its failures; the prefill
server is chosen here. It keeps the caches of prompts, so the turns of a conversation go to the same one.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from rlrun.runner.contracts.carriers import GenerateRequest, Generation
from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.affinity import SessionAffinity
from rlrun.runner.engines.pool.routing import Router
from rlrun.runner.host.background import cancel_all


class PrefillServers:
    """The prefill servers of a router."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._affinity = SessionAffinity()

    async def generate(
        self, decode: EngineClient, requests: Sequence[GenerateRequest]
    ) -> list[list[Generation]]:
        """Returns the samples of a decode server, which gets the prompts' caches from a prefill server.

        Another prefill server is asked when one is gone. Raises the errors of `EngineClient.generate_batch`.
        """
        samples = sum(len(request.seeds) for request in requests)
        prompts = {request.prompt_index for request in requests}
        while True:
            up = await self._router.slots_up("prefill")
            slot = self._affinity.choose(requests[0].session, up)
            prefill = slot.client
            with self._router.at_work(slot, samples, prompts):
                try:
                    return await _generate(prefill, decode, requests, samples)
                except _PrefillGone as gone:
                    self._router.mark_gone(slot, prefill, gone.error)


class _PrefillGone(Exception):
    def __init__(self, error: EngineGone) -> None:
        self.error = error


async def _generate(
    prefill: EngineClient, decode: EngineClient, requests: Sequence[GenerateRequest], samples: int
) -> list[list[Generation]]:
    """Returns the samples of one pair of servers. Where one of the two fails, the call to the other ends."""
    rooms = prefill.serving.new_rooms(samples)
    handing = asyncio.ensure_future(prefill.prefill(requests, rooms))
    decoding = asyncio.ensure_future(decode.generate_batch(requests, rooms))
    try:
        await asyncio.wait([handing, decoding], return_when=asyncio.FIRST_EXCEPTION)
        if decoding.done() and isinstance(decoding.exception(), EngineGone):
            return await decoding
        if handing.done() and (error := handing.exception()) is not None:
            raise _PrefillGone(error) if isinstance(error, EngineGone) else error
        return await decoding
    finally:
        waiting = [client for client, call in ((prefill, handing), (decode, decoding)) if not call.done()]
        await cancel_all([handing, decoding])
        await asyncio.gather(*(_abort(client, requests) for client in waiting))


async def _abort(client: EngineClient, requests: Sequence[GenerateRequest]) -> None:
    """Ends requests whose partner failed, as far as the server still answers."""
    with suppress(EngineError, TimeoutError):
        await asyncio.gather(*map(client.abort, requests))
