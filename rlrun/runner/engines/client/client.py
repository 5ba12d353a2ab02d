"""The client of an engine: SGLang's HTTP protocol, for SGLang servers and for rlrun's own engines.

    GenerateRequest ──wire──▶ JSON ──POST /generate──▶ engine ──JSON──▶ parsing ──▶ Generation
                                └──frame of a channel──▶ rlrun's own engine

SGLang gets a request, and a connection, for each call that is in flight. Calls to rlrun's own engines share a
channel (rlrun.runner.contracts.channel_frames), except for those with very long bodies or answers.

EngineClient generates and scores; the classes below it make the other calls:
EngineClient ── WeightClient (updates of the weights) ── ControlClient (pausing, memory, health).

Every call has a deadline. A generation is sent again only when it never reached the engine.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.images import PlacedImage
from rlrun.runner.contracts.carriers import GenerateRequest, Generation
from rlrun.runner.contracts.channel_frames import MAX_FRAME_BYTES
from rlrun.runner.contracts.weight_updates import UpdatedModels
from rlrun.runner.engines.client.connection import Connection
from rlrun.runner.engines.client.parsing import (
    NO_LIMITS,
    ModelLimits,
    TopScores,
    max_answer_bytes,
    max_score_bytes,
    parse_generations,
    parse_scores,
    parse_top_scores,
    sample_ids,
)
from rlrun.runner.engines.client.rooms import REGULAR, Rooms, Serving
from rlrun.runner.engines.client.weight_client import WeightClient
from rlrun.runner.engines.client.wire import generate_body, score_body


class EngineClient(WeightClient):
    """Calls one engine. Create and use it in one event loop; `close` it, or use it as an async context
    manager.

    Every method raises EngineError when the engine refuses (with its message), cannot be reached, fails, or
    answers with something other than it was asked for (BadAnswer); TimeoutError when its deadline passes.
    """

    def __init__(
        self,
        url: str,
        generate_timeout: float = 3600.0,
        control_timeout: float = 120.0,
        api_key: str | None = None,
        *,
        name: str = "engine",
        limits: ModelLimits = NO_LIMITS,
        models: UpdatedModels = "target",
        own: bool = False,
        serving: Serving = REGULAR,
    ) -> None:
        """`generate_timeout`: seconds for a /generate call. `control_timeout`: seconds for any other call.
        `api_key`: the key that the engine asks for, if any. `name`: its name in messages. `limits`: bounds
        that its answers are checked against, and whether it is asked which experts tokens are routed to.
        `models`: which models of an SGLang server weight updates are for.
        `own`: the engine is rlrun's own, so it is called over one channel and sends packed answers.
        `serving`: what it does for a sample.
        """
        super().__init__(Connection(url, api_key, name), control_timeout, models)
        self.vocabulary = limits.vocabulary
        self.api_key = api_key
        self.own = own
        """The engine is rlrun's own."""
        self.serving = serving
        """What the engine does for a sample."""
        self._limits = limits
        self._generate_timeout = generate_timeout

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Returns the n samples of one request, in the order of its seeds."""
        return (await self.generate_batch([request]))[0]

    async def generate_batch(
        self, requests: Sequence[GenerateRequest], rooms: Rooms | None = None
    ) -> list[list[Generation]]:
        """Returns the samples of all requests, sent in one call.

        The engine then runs these requests together, and no others if it is otherwise idle. `rooms`: where a
        decode server gets the caches of the prompts, which a prefill server has to `prefill`.
        """
        if not requests:
            return []
        ids = [sample_id for request in requests for sample_id in sample_ids(request)]
        async with self._adapters.use(ids) as adapters:
            experts = self._limits.experts is not None
            body = generate_body(requests, experts=experts, adapters=adapters, packed=self.own, rooms=rooms)
            max_bytes = max_answer_bytes(requests, self._limits, packed=self.own)
            raw = await self._generate(body, max_bytes, safe=False)
        return self._read(
            "/generate", lambda: parse_generations(raw, requests, self._limits, adapters, packed=self.own)
        )

    async def prefill(self, requests: Sequence[GenerateRequest], rooms: Rooms) -> None:
        """Makes a prefill server compute the caches of the prompts; returns when decode servers have them.

        Its answer, the first token of each sample, is also in that of the decode server.
        """
        body = generate_body(requests, rooms=rooms)
        await self._generate(body, max_answer_bytes(requests, self._limits), safe=False)

    async def abort(self, request: GenerateRequest) -> None:
        """Ends the samples of a request; it is answered with the tokens so far."""
        bodies = ({"rid": sample_id} for sample_id in sample_ids(request))
        await asyncio.gather(*(self._post("/abort_request", body) for body in bodies))

    async def score(
        self,
        sequences: Sequence[NDArray[np.int32]],
        images: Sequence[Sequence[PlacedImage]] = (),
        *,
        adapter: str | None = None,
    ) -> list[NDArray[np.float32]]:
        """Returns log-probs `[T - 1]` of each sequence's own tokens from the second on, at temperature 1.

        `images`: those of each sequence; empty: no sequence has images. `adapter`: the name of an adapter
        that the server has from its start; None: those of the policy.
        """
        if not sequences:
            return []
        async with self._adapters.use() as adapters:
            body = score_body(sequences, adapter or adapters, images)
            raw = await self._generate(body, max_score_bytes(sequences), safe=True)
        placeholder = next((image.placeholder for own in images for image in own), None)
        return self._read("/generate", lambda: parse_scores(raw, sequences, self._limits, placeholder))

    async def score_top(
        self,
        sequences: Sequence[NDArray[np.int32]],
        starts: Sequence[int],
        num_top: int,
        *,
        adapter: str | None = None,
    ) -> list[TopScores]:
        """Returns the scores of each sequence's tokens after `starts`, at temperature 1, with the `num_top`
        most probable tokens at each position. `adapter`: see `score`.
        """
        if not sequences:
            return []
        async with self._adapters.use() as adapters:
            body = score_body(sequences, adapter or adapters, starts=starts, num_top=num_top)
            raw = await self._generate(body, max_score_bytes(sequences, num_top), safe=True)
        return self._read(
            "/generate", lambda: parse_top_scores(raw, sequences, starts, num_top, self._limits)
        )

    async def _generate(self, body: bytes, max_bytes: int, *, safe: bool) -> bytes:
        seconds = self._generate_timeout
        if self.own and max(len(body), max_bytes) <= MAX_FRAME_BYTES:
            return await self._connection.call_on_channel(body, seconds, safe=safe, max_bytes=max_bytes)
        return await self._connection.call("POST", "/generate", body, seconds, safe=safe, max_bytes=max_bytes)
