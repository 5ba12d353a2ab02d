"""Engines whose requests can be parked while the weights change, and continue from the tokens they have.

    generate ──▶ engines ──▶ every sample finished ──▶ answer
                  ▲  │ stop: the unfinished samples, with their tokens so far
                  │  ▼
         resume ──┴─ parked while the weights change; saved in checkpoints

The generations of a prompt are kept until `forget`. A job that resumes from a checkpoint sends the same
requests again, with the same ids and tokens, and each finds its saved generations.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlrun.plugins.generation import Generation
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.interfaces import Engines
from rlrun.runner.contracts.weight_updates import WeightUpdate
from rlrun.runner.rollouts.deadlines import GRACE_SECONDS
from rlrun.runner.rollouts.resumable_request import Decode, ResumableRequest, generation_of, record_of
from rlrun.runner.rollouts.sessions import empty_generations

_ABORT_INTERVAL = 0.2
"""Seconds between aborts: a request that reached its engine after an abort is only ended by the next one."""


class ResumingEngines:
    """Wraps engines (rlrun.runner.contracts.interfaces.Engines) so that requests can be parked."""

    def __init__(self, engines: Engines, decode: Decode) -> None:
        """`decode` is used to find stop strings that begin in one part of a sample and end in the next."""
        self._engines = engines
        self._decode = decode
        self._generations: defaultdict[int, dict[str, list[Generation]]] = defaultdict(dict)
        """Generations by prompt index and key of the request."""
        self._parked: dict[ResumableRequest, None] = {}
        self._running: dict[ResumableRequest, None] = {}
        self._calls: set[asyncio.Task[list[Generation]]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False

    @property
    def version(self) -> int | None:
        """Returns the version of the weights that the engines were given last; None before the first."""
        return self._engines.version

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Returns all samples of the request, however often the engines are stopped meanwhile."""
        resumable = ResumableRequest(request, empty_generations(request))
        saved = self._generations[request.prompt_index]
        resumable.generations = saved.setdefault(resumable.key, resumable.generations)
        resumable.end_at_limit()
        while not resumable.is_late and (requests := resumable.next_requests()):
            await (self._park(resumable) if self._stopped else self._send(resumable, requests))
        return list(resumable.generations)

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """Returns the samples of all requests, in order."""
        return list(await asyncio.gather(*map(self.generate, requests)))

    async def abort(self, request: GenerateRequest) -> None:
        """Ends a request, which returns the tokens it has; a parked one returns at once."""
        open_requests = [*self._running, *self._parked]
        for resumable in [candidate for candidate in open_requests if candidate.request is request]:
            resumable.is_late = True
            if resumable in self._running:
                part_requests = [part for _, part in resumable.next_requests()]
                await asyncio.gather(*map(self._engines.abort, part_requests))
            elif not resumable.resumed.done():
                resumable.resumed.set_result(None)

    async def abort_all(self) -> None:
        """Ends every running request for good."""
        await self._engines.abort_all()

    async def update_weights(self, update: WeightUpdate) -> int:
        """Updates the wrapped engines."""
        return await self._engines.update_weights(update)

    async def stop(self) -> None:
        """Parks every request, and returns when the engines work on none.

        A request whose engine does not answer within GRACE_SECONDS loses the tokens of its current part.
        """
        self._stopped = True
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(GRACE_SECONDS):
                while not self._idle.is_set():
                    await self._engines.abort_all()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_ABORT_INTERVAL):
                            await self._idle.wait()
        for call in self._calls:
            call.cancel()
        await self._idle.wait()

    def resume(self, order: Sequence[int] = ()) -> None:
        """Continues all parked requests, those of the prompts in `order` first."""
        self._stopped = False
        rank = {index: position for position, index in enumerate(order)}
        last = len(rank)
        for parked in sorted(self._parked, key=lambda parked: rank.get(parked.request.prompt_index, last)):
            if not parked.resumed.done():
                parked.resumed.set_result(None)

    def generations(self, prompt: int) -> list[Generation]:
        """Returns all generations made for a prompt so far, finished or not."""
        return [
            generation
            for generations in self._generations.get(prompt, {}).values()
            for generation in generations
        ]

    def forget(self, prompt: int) -> None:
        """Drops the generations of a prompt that is finished."""
        self._generations.pop(prompt, None)

    def state(self) -> dict[str, Any]:
        """Returns the generations by prompt index and key of the request, as JSON values."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that returns the state as it is now, to be called later.

        Copying the lists is enough, because a generation that grows is replaced, not changed.
        """
        by_prompt = {
            prompt: {key: list(generations) for key, generations in requests.items()}
            for prompt, requests in self._generations.items()
        }

        def read() -> dict[str, Any]:
            records = {
                str(prompt): {
                    key: [record_of(generation) for generation in generations]
                    for key, generations in requests.items()
                    if any(len(generation.tokens) for generation in generations)
                }
                for prompt, requests in by_prompt.items()
            }
            return {prompt: requests for prompt, requests in records.items() if requests}

        return read

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores saved generations, which are continued once the same requests are sent again."""
        self._generations.clear()
        for prompt, requests in state.items():
            for key, records in requests.items():
                self._generations[int(prompt)][key] = [generation_of(record) for record in records]

    async def _park(self, resumable: ResumableRequest) -> None:
        self._parked[resumable] = None
        resumable.resumed = asyncio.get_running_loop().create_future()
        try:
            await resumable.resumed
        finally:
            del self._parked[resumable]

    async def _send(
        self, resumable: ResumableRequest, requests: Sequence[tuple[list[int], GenerateRequest]]
    ) -> None:
        """Sends the next part of each sample once, and appends the answers; raises the engines' errors."""
        self._running[resumable] = None
        self._idle.clear()
        calls = [asyncio.ensure_future(self._engines.generate(request)) for _, request in requests]
        self._calls.update(calls)
        try:
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for (samples, _), answer in zip(requests, answers, strict=True):
                if isinstance(answer, asyncio.CancelledError):
                    continue  # cancelled by `stop`
                if isinstance(answer, BaseException):
                    raise answer
                for sample, part in zip(samples, answer, strict=True):
                    resumable.append(sample, part, self._decode)
        finally:
            self._calls.difference_update(calls)
            del self._running[resumable]
            if not self._running:
                self._idle.set()
