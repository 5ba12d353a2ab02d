"""All engines of one model as one: requests are spread over them, and weights reach all of them.

    rollouts ──GenerateRequest──▶ EnginePool ──Router──▶ one engine (or a Gateway chooses it)
    loop ──WeightUpdate──▶ EnginePool ──ServedWeights──▶ every engine
    Supervisor ──client of a restarted engine──▶ EnginePool.readmit

A lost engine gets no requests until it is readmitted; the requests that it had are sent again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.images import PlacedImage
from rlrun.runner.contracts.carriers import GenerateRequest, Generation
from rlrun.runner.contracts.errors import BadAnswer
from rlrun.runner.contracts.weight_updates import WeightUpdate
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.control import MemoryTag
from rlrun.runner.engines.client.parsing import TopScores
from rlrun.runner.engines.pool.engine_slot import EngineSlot
from rlrun.runner.engines.pool.prefill import PrefillServers
from rlrun.runner.engines.pool.queue_watch import QueueCounts, watch_queues
from rlrun.runner.engines.pool.routing import Router
from rlrun.runner.engines.pool.served_weights import ServedWeights
from rlrun.runner.host.failures import gather_or_first_cause

logger = logging.getLogger(__name__)
SCORED_TOGETHER = 16
"""Sequences per call for their log-probs."""
ENTRIES_TOGETHER = 1 << 18
"""Most probable tokens per call, of all positions together: about 10 MB of JSON."""

SendSample = Callable[[GenerateRequest, int], Awaitable[Generation]]
"""Generates one sample of a request, given its number among the request's seeds."""


class EnginePool:
    """Spreads requests over engines, and controls all of them together."""

    def __init__(
        self,
        clients: Sequence[EngineClient | None],
        *,
        supervised: bool = False,
        send_sample: SendSample | None = None,
    ) -> None:
        """`clients`: None for elastic engines that have not joined yet. `supervised`: a Supervisor starts
        lost engines again and readmits them; otherwise a lost engine is an error of the request.
        `send_sample`: sends a sample through a gateway that chooses the engine.
        """
        assert clients, "a pool needs an engine"
        self._send_sample = send_sample
        self._router = Router(clients, supervised=supervised)
        apart = any(client is not None and client.serving.role != "regular" for client in clients)
        self._prefill_servers = PrefillServers(self._router) if apart else None
        self._weights = ServedWeights(self._router, supervised=supervised)
        self._awake = asyncio.Event()
        self._awake.set()
        self.queue_counts = QueueCounts()
        """What `watch_queues` has counted."""

    async def watch_queues(self) -> None:
        """Counts samples that wait for room in the caches of SGLang servers; never returns."""
        await watch_queues(self.slots, self.queue_counts)

    @property
    def slots(self) -> Sequence[EngineSlot]:
        """The engines' slots, in the order of their numbers."""
        return self._router.slots

    @property
    def generating(self) -> Sequence[EngineSlot]:
        """The slots of the engines that generate; prefill servers do not."""
        return self._router.generating

    @property
    def vocabulary(self) -> int:
        """Token ids of the served model are below this."""
        return min(slot.client.vocabulary for slot in self._joined)

    @property
    def engines_up(self) -> int:
        """How many engines get requests now."""
        return sum(slot.up.is_set() for slot in self.slots)

    @property
    def _joined(self) -> list[EngineSlot]:
        return [slot for slot in self.slots if slot.has_joined]

    def take_bad_answers(self) -> int:
        """Returns the number of bad answers since the last call."""
        count, self._router.bad_answers = self._router.bad_answers, 0
        return count

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Returns the n samples of one request, from the engine that suits its session best.

        Where a gateway chooses the engines, each sample may come from another one.
        """
        if self._send_sample is not None:
            calls = [partial(self._generate_sample, request, number) for number in range(len(request.seeds))]
            return await gather_or_first_cause([self._router.dispatch_by_gateway(call) for call in calls])
        call = partial(self._generate_with, requests=[request])
        prompts = [request.prompt_index]
        [generations] = await self._router.dispatch(request.session, len(request.seeds), call, prompts)
        return generations

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """Returns the samples of all requests, sent as one call per engine.

        Which requests run together depends only on their order, so that deterministic runs repeat.
        """
        size = -(-len(requests) // len(self.generating)) or 1
        shares = [requests[start : start + size] for start in range(0, len(requests), size)]
        answers = await asyncio.gather(*map(self._generate_on, self.generating, shares))
        return [generations for share in answers for generations in share]

    async def score(
        self,
        sequences: Sequence[NDArray[np.int32]],
        images: Sequence[Sequence[PlacedImage]] = (),
        *,
        adapter: str | None = None,
    ) -> list[NDArray[np.float32]]:
        """Returns log-probs `[T - 1]` of each sequence's own tokens from the second on, at temperature 1.

        `images`, `adapter`: see `EngineClient.score`.
        """
        parts = [slice(at, at + SCORED_TOGETHER) for at in range(0, len(sequences), SCORED_TOGETHER)]
        calls = (self._score(sequences[part], images[part], adapter) for part in parts)
        answers = await asyncio.gather(*calls)
        return [log_probs for answer in answers for log_probs in answer]

    async def score_top(
        self,
        sequences: Sequence[NDArray[np.int32]],
        starts: Sequence[int],
        num_top: int,
        *,
        adapter: str | None = None,
    ) -> list[TopScores]:
        """Returns the scores of each sequence's tokens after `starts`, with the most probable tokens: see
        `EngineClient.score_top`.
        """
        longest = max(
            (len(tokens) - start for tokens, start in zip(sequences, starts, strict=True)), default=1
        )
        size = max(1, min(SCORED_TOGETHER, ENTRIES_TOGETHER // (longest * num_top)))
        parts = [slice(at, at + size) for at in range(0, len(sequences), size)]

        async def score(part: slice) -> list[TopScores]:
            own, first = sequences[part], starts[part]
            call = lambda client: client.score_top(own, first, num_top, adapter=adapter)  # noqa: E731
            return await self._router.dispatch("", len(own), call)

        answers = await asyncio.gather(*map(score, parts))
        return [scores for answer in answers for scores in answer]

    async def score_on_each(
        self, tokens: NDArray[np.int32], images: Sequence[PlacedImage] = ()
    ) -> dict[str, NDArray[np.float32]]:
        """Returns log-probs `[T - 1]` of one sequence from each engine that is up, by the engine's name.

        A bad answer is logged and counted, and its engine is left out.
        """
        scores: dict[str, NDArray[np.float32]] = {}

        async def score(slot: EngineSlot) -> None:
            try:
                [scores[slot.client.name]] = await slot.client.score([tokens], [images] if images else ())
            except BadAnswer as error:
                self._router.bad_answers += 1
                logger.warning("%s", error)

        await self._router.broadcast(score)
        return scores

    async def abort(self, request: GenerateRequest) -> None:
        """Ends a running request on whichever engine has it; it is answered with the tokens so far."""
        await self._router.broadcast(lambda slot: slot.client.abort(request))

    async def abort_all(self) -> None:
        """Ends every running request; each is answered with the tokens so far."""
        await self._router.broadcast(lambda slot: slot.client.abort_all())

    async def sleep(self) -> None:
        """Aborts what runs and releases the memory of weights, cache and CUDA graphs until `wake`."""
        self._awake.clear()
        await self._router.broadcast(lambda slot: slot.release_memory())

    async def wake(self, memory: Literal["weights", "kv_cache"]) -> None:
        """Allocates that memory again: the weights' before an update, the cache's before generating.

        CUDA graphs come back with the cache.
        """
        tags: Sequence[MemoryTag] = ("weights",) if memory == "weights" else ("cuda_graph", "kv_cache")
        await self._router.broadcast(lambda slot: slot.resume_memory(tags))
        if memory == "kv_cache":
            self._awake.set()

    async def wait_until_awake(self) -> None:
        """Returns when the engines are not asleep, so that there is memory to start one."""
        await self._awake.wait()

    async def health(self) -> dict[str, bool]:
        """Returns whether each engine works, by URL."""
        joined = self._joined
        states = await asyncio.gather(*(slot.client.health() for slot in joined))
        return {slot.client.url: state for slot, state in zip(joined, states, strict=True)}

    async def update_weights(self, update: WeightUpdate) -> int:
        """Makes all engines serve new weights; returns the version that they confirmed.

        A lost engine gets the weights when it is readmitted. An engine that refuses them, or holds other
        bytes than were sent, is marked down too; where engines are not supervised, that is an error.
        """
        return await self._weights.update(update)

    @property
    def version(self) -> int | None:
        """Version of the weights that the engines were given last; None before the first update."""
        return self._weights.version

    def forget_weights(self) -> None:
        """Drops the last update; restarted engines wait for the next one."""
        self._weights.forget()

    async def wait_until_down(self, engine: int) -> None:
        """Returns when this engine is lost."""
        await self.slots[engine].down.wait()

    def cause(self, engine: int) -> str | None:
        """Returns why this engine was lost, if the pool knows."""
        return self.slots[engine].cause

    def mark_down(self, engine: int) -> None:
        """Sends this engine no more requests; keeps the cause if there is one."""
        self.slots[engine].mark_down(self.slots[engine].cause)

    async def readmit(self, engine: int, client: EngineClient) -> None:
        """Sends requests to a restarted engine again, once it serves the weights that the others serve.

        Where the trainer has newer weights by now, that is after the next update. Raises EngineError when the
        engine refuses the weights.
        """
        await self._weights.readmit(engine, client)

    async def close(self) -> None:
        """Closes the connections; the engines keep running."""
        await asyncio.gather(*(slot.client.close() for slot in self._joined))

    async def _score(
        self,
        sequences: Sequence[NDArray[np.int32]],
        images: Sequence[Sequence[PlacedImage]],
        adapter: str | None,
    ) -> list[NDArray[np.float32]]:
        score = lambda client: client.score(sequences, images, adapter=adapter)  # noqa: E731
        return await self._router.dispatch("", len(sequences), score)

    async def _generate_on(
        self, slot: EngineSlot, requests: Sequence[GenerateRequest]
    ) -> list[list[Generation]]:
        samples = sum(len(request.seeds) for request in requests)
        prompts = {request.prompt_index for request in requests}
        call = partial(self._generate_with, requests=requests)
        return await self._router.dispatch_to(slot, samples, call, prompts)

    async def _generate_with(
        self, client: EngineClient, requests: Sequence[GenerateRequest]
    ) -> list[list[Generation]]:
        """Returns this engine's samples; raises BadAnswer if it claims weights that it cannot have."""
        confirmed = self._weights.confirmed  # before the call: an update may be confirmed while it runs
        if self._prefill_servers is None:
            answers = await client.generate_batch(requests)
        else:
            answers = await self._prefill_servers.generate(client, requests)
        try:
            self._weights.check(answers, confirmed)
        except BadAnswer as error:
            raise error.from_engine(client.name, "/generate") from None
        return answers

    async def _generate_sample(self, request: GenerateRequest, number: int) -> Generation:
        """Returns one sample from an engine that the gateway chooses, checked in the same way."""
        assert self._send_sample is not None
        confirmed = self._weights.confirmed
        generation = await self._send_sample(request, number)
        try:
            self._weights.check([[generation]], confirmed)
        except BadAnswer as error:
            raise error.from_engine("an engine behind the router", "/generate") from None
        return generation
