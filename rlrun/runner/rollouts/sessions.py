"""Sessions: how one execution, or all executions of a prompt, send requests to the policy.

They implement rlrun.plugins.session.Session and SessionGroup for rollout plugins. A session chooses the seed
and the token budget of each turn, and sends the request through a `SendRequest` function.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.engines import ServedEngine
from rlrun.plugins.generation import Generation, Sampling
from rlrun.plugins.images import PlacedImage
from rlrun.plugins.types import Prompt
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.contracts.placeholders import collapse
from rlrun.runner.contracts.seeds import turn_seed
from rlrun.runner.rollouts.settings import RolloutSettings

Tokens = NDArray[np.int32]
SendRequest = Callable[[GenerateRequest], Awaitable[list[Generation]]]
"""Sends a request to the engines and returns one generation per seed."""


class OpenRequests:
    """The unanswered requests that share one deadline: those of an execution, or of a prompt's executions."""

    def __init__(self, send: SendRequest) -> None:
        self.send_to_engines = send
        self.is_late = False
        """The deadline has passed: further requests are not sent, and return empty generations."""
        self._pending: dict[asyncio.Future[list[Generation]], GenerateRequest] = {}

    @property
    def unanswered(self) -> list[GenerateRequest]:
        """Returns the requests that the engines have not answered yet."""
        return list(self._pending.values())

    async def send(self, request: GenerateRequest) -> list[Generation]:
        """Returns one generation per seed of the request; empty ones after the deadline."""
        if self.is_late:
            return empty_generations(request)
        answer = asyncio.ensure_future(self.send_to_engines(request))
        self._pending[answer] = request
        try:
            return await answer
        except asyncio.CancelledError:
            if self.is_late and answer.cancelled() and not _is_being_cancelled():
                return empty_generations(request)
            raise
        finally:
            del self._pending[answer]

    def cancel(self) -> None:
        """Makes every unanswered request return empty generations, because an engine ignored the abort."""
        assert self.is_late, "requests are only cancelled after their deadline"
        for answer in self._pending:
            answer.cancel()


class PolicySession:
    """The session of one execution (rlrun.plugins.session.Session)."""

    def __init__(self, group: "PolicyGroup", number: int, seed: int) -> None:
        self._group = group
        self.id = f"{group.prompt.index}-{'greedy' if group.settings.is_greedy else number}"
        self.number = number
        self.prompt = group.prompt
        self.seed = seed
        self.sampling = group.settings.sampling
        self.max_tokens = group.settings.max_sample_tokens
        self.max_turn_tokens = group.settings.max_turn_tokens
        self.chat = group.chat
        self.requests = group.requests
        """Shared by all sessions of a group, unless each execution has its own deadline."""
        self._num_turns = 0
        self._engines: dict[str, ServedEngine] = {}

    @property
    def version(self) -> int:
        """Returns the version of the engines' weights (rlrun.plugins.session.Session)."""
        return self._group.engines.version or 0

    def engine(self, name: str) -> ServedEngine:
        """Returns a client of a model of `[[engines]]` (rlrun.plugins.session.Session)."""
        if name not in self._engines:
            self._engines[name] = self._group.named_engines.engine(name, self.seed)
        return self._engines[name]

    async def generate(
        self,
        tokens: Tokens,
        sampling: Sampling | None = None,
        images: Sequence[PlacedImage] | None = None,
    ) -> Generation:
        """Returns the policy's continuation of `tokens` (rlrun.plugins.session.Session)."""
        limited = self._group.settings.sampling_for(tokens, sampling)
        if limited is None:
            return empty_generation("length")
        turn, self._num_turns = self._num_turns, self._num_turns + 1
        request = GenerateRequest(
            f"{self._group.session}-{self.number}.{turn}",
            tokens,
            (turn_seed(self.seed, turn),),
            limited,
            session=f"{self._group.session}/{self.number}",
        )
        [generation] = await self.requests.send(self._group.completed(request, images))
        return generation


class PolicyGroup:
    """The session of all executions of a prompt (rlrun.plugins.session.SessionGroup)."""

    def __init__(
        self,
        policy: RolloutContext,
        settings: RolloutSettings,
        prompt: Prompt,
        seeds: Sequence[int],
        send: SendRequest,
    ) -> None:
        self.chat = policy.tokenizer
        self.engines = policy.engines
        self.named_engines = policy.named_engines
        self.settings = settings
        self.prompt = prompt
        self.requests = OpenRequests(send)
        self.session = f"{settings.purpose}-{prompt.index}"
        self._seeds = seeds
        self._num_turns = 0

    @cached_property
    def sessions(self) -> list[PolicySession]:
        """Returns one session per execution; made on first use, as single-turn rollouts never need them."""
        return [
            PolicySession(self, number, seed)
            for number, seed in enumerate(self._seeds, self.settings.first_number)
        ]

    async def generate(
        self,
        tokens: Tokens,
        sampling: Sampling | None = None,
        images: Sequence[PlacedImage] | None = None,
    ) -> list[Generation]:
        """Returns one generation per execution, made by one request (rlrun.plugins.session.SessionGroup)."""
        limited = self.settings.sampling_for(tokens, sampling)
        if limited is None:
            return [empty_generation("length") for _ in self._seeds]
        turn, self._num_turns = self._num_turns, self._num_turns + 1
        part = f"{self.session}+{first}" if (first := self.settings.first_number) else self.session
        request = GenerateRequest(
            f"{part}.{turn}" if turn else part,
            tokens,
            tuple(turn_seed(seed, turn) for seed in self._seeds),
            limited,
            session=self.session,
        )
        return await self.requests.send(self.completed(request, images))

    def completed(self, request: GenerateRequest, images: Sequence[PlacedImage] | None) -> GenerateRequest:
        """Returns the request with what all requests of the prompt share. `images`: None: the prompt's."""
        options = self.settings.options_for(request.sampling)
        request = replace(request, options=options, prompt_index=self.prompt.index)
        return _with_images(request, self.prompt.images if images is None else images)


def _is_being_cancelled() -> bool:
    """Returns whether the current task was cancelled itself, not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _with_images(request: GenerateRequest, images: Sequence[PlacedImage]) -> GenerateRequest:
    """Returns the request with its images. A placeholder that the policy generates ends its answer: an engine
    that continued after it would look for one more image.

    Raises ValueError if the request's placeholders are not those of the images.
    """
    if not images:
        return request
    collapse(request.tokens, images)
    stops = dict.fromkeys([*request.sampling.stop_token_ids, images[0].placeholder])
    return replace(
        request, images=tuple(images), sampling=replace(request.sampling, stop_token_ids=tuple(stops))
    )


def empty_generations(request: GenerateRequest) -> list[Generation]:
    """Returns an aborted generation without tokens for each seed of a request."""
    return [empty_generation("abort") for _ in request.seeds]


def empty_generation(finish: Literal["length", "abort"]) -> Generation:
    """Returns a generation without tokens."""
    return Generation(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32), finish, ())
