"""Requests that outlive a stop of the engines: they go on from the tokens that they have.

    generate ──▶ engines ──▶ every sample finished ──▶ answer
                  ▲  │ stop: the others, with their tokens so far
                  │  ▼
         resume ──┴─ parked, while the weights change; in the checkpoint

Everything that was made for a prompt is kept until somebody forgets the prompt. A job that goes on from a
checkpoint asks again what it had asked, and is answered from what was made: the same question has the same
id and the same tokens.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlrun.plugins.generation import Generation
from rlrun.runner.contracts.carriers import GenerateRequest, WeightUpdate
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.interfaces import Engines
from rlrun.runner.rollouts.deadlines import GRACE_SECONDS
from rlrun.runner.rollouts.resumable_request import ResumableRequest, generation_of, prompt_of, record_of
from rlrun.runner.rollouts.sessions import nothing
from rlrun.runner.rollouts.stop_strings import Decode

_AGAIN_SECONDS = 0.2
"""A request that was on its way when the others were aborted is aborted after so long."""


class ResumingEngines:
    """Engines whose requests can be parked and go on."""

    def __init__(self, engines: Engines, decode: Decode) -> None:
        """`decode` finds stop strings of which an engine made only the end."""
        self._engines = engines
        self._decode = decode
        self._made: defaultdict[int, dict[str, list[Generation]]] = defaultdict(dict)
        """By prompt and question."""
        self._parked: dict[ResumableRequest, None] = {}
        self._running: dict[ResumableRequest, None] = {}
        self._calls: set[asyncio.Task[list[Generation]]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """All samples of the request, however often the engines are stopped meanwhile."""
        ask = ResumableRequest(request, [nothing("abort") for _ in request.seeds])
        ask.made = self._made[prompt_of(request.id)].setdefault(ask.key, ask.made)
        ask.end_at_limit()
        while not ask.late and (rounds := ask.rounds()):
            await (self._park(ask) if self._stopped else self._work(ask, rounds))
        return list(ask.made)

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """All requests; the answers, in order."""
        return list(await asyncio.gather(*map(self.generate, requests)))

    async def abort(self, request: GenerateRequest) -> None:
        """End a request: it answers with what it has, at once where it is parked."""
        for ask in [ask for ask in (*self._running, *self._parked) if ask.request is request]:
            ask.late = True
            if ask in self._running:
                await asyncio.gather(*(self._engines.abort(part) for _, part in ask.rounds()))
            elif not ask.go.done():
                ask.go.set_result(None)

    async def abort_all(self) -> None:
        """End every running request for good; to be called when nobody wants them."""
        await self._engines.abort_all()

    async def update_weights(self, update: WeightUpdate) -> int:
        """As the engines do."""
        return await self._engines.update_weights(update)

    async def stop(self) -> None:
        """Park every request; return when no engine works on any.

        One that does not answer within 5 s keeps what it had when it was asked last.
        """
        self._stopped = True
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(GRACE_SECONDS):
                while not self._idle.is_set():
                    await self._engines.abort_all()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_AGAIN_SECONDS):
                            await self._idle.wait()
        for call in self._calls:
            call.cancel()
        await self._idle.wait()

    def resume(self, order: Sequence[int] = ()) -> None:
        """Let parked requests go on, those of these prompts first and in this order."""
        self._stopped = False
        rank = {index: place for place, index in enumerate(order)}
        for ask in sorted(self._parked, key=lambda ask: rank.get(prompt_of(ask.request.id), len(rank))):
            if not ask.go.done():
                ask.go.set_result(None)

    def made(self, prompt: int) -> list[Generation]:
        """What was made for a prompt so far, answered or not."""
        return [one for made in self._made.get(prompt, {}).values() for one in made]

    def forget(self, prompt: int) -> None:
        """Nobody will ask about this prompt again."""
        self._made.pop(prompt, None)

    def state(self) -> dict[str, Any]:
        """What was made for prompts that nobody has forgotten, as JSON values."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now, to be read later: a generation that grows is replaced, not changed."""
        made = {key: list(found) for asked in self._made.values() for key, found in asked.items()}

        def read() -> dict[str, Any]:
            return {
                key: [record_of(one) for one in found]
                for key, found in made.items()
                if any(len(one.tokens) for one in found)
            }

        return read

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state as soon as the same is asked again."""
        self._made.clear()
        for key, found in state.items():
            self._made[prompt_of(key)][key] = [generation_of(one) for one in found]

    async def _park(self, ask: ResumableRequest) -> None:
        self._parked[ask] = None
        ask.go = asyncio.get_running_loop().create_future()
        try:
            await ask.go
        finally:
            del self._parked[ask]

    async def _work(self, ask: ResumableRequest, rounds: Sequence[tuple[list[int], GenerateRequest]]) -> None:
        """Ask the engines once. EngineError as they raise it."""
        self._running[ask] = None
        self._idle.clear()
        calls = [asyncio.ensure_future(self._engines.generate(request)) for _, request in rounds]
        self._calls.update(calls)
        try:
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for (places, _), answer in zip(rounds, answers, strict=True):
                if isinstance(answer, asyncio.CancelledError):
                    continue  # by `stop`
                if isinstance(answer, BaseException):
                    raise answer
                for place, made in zip(places, answer, strict=True):
                    ask.add(place, made, self._decode)
        finally:
            self._calls.difference_update(calls)
            del self._running[ask]
            if not self._running:
                self._idle.set()
