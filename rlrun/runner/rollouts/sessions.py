"""Sessions: how an execution asks the policy (rlrun.plugins.session.Session). Pure but for the asking."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.generation import Generation, Sampling
from rlrun.plugins.session import Chat
from rlrun.plugins.types import Prompt
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.seeds import turn_seed

Tokens = NDArray[np.int32]
SendRequest = Callable[[GenerateRequest], Awaitable[list[Generation]]]
"""Where requests go."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What is wanted of the policy for every prompt."""

    purpose: str
    """Names requests, and seeds them apart: training and every evaluation have their own."""
    samples: int
    """n: executions of a prompt."""
    sampling: Sampling
    max_tokens: int
    """The longest sample, its prompt included."""
    timeout: float
    """Seconds for an execution."""
    max_turn_tokens: int | None = None
    """The longest answer; None: as long as the sample has room."""
    record_mask: bool = False
    """Engines return what each token was drawn from."""

    @property
    def turn_limit(self) -> int:
        """Tokens of the longest answer."""
        longest = self.sampling.max_new_tokens
        return longest if self.max_turn_tokens is None else min(longest, self.max_turn_tokens)

    def sampling_for(self, tokens: Tokens, given: Sampling | None) -> Sampling | None:
        """What may be drawn after these tokens; None where there is no room."""
        sampling = given or self.sampling
        room = min(sampling.max_new_tokens, self.turn_limit, self.max_tokens - len(tokens))
        least = min(sampling.min_new_tokens, room)  # a later turn, or an evaluation, may have less room
        return replace(sampling, max_new_tokens=room, min_new_tokens=least) if room > 0 else None


class Requests:
    """The requests of everything that shares one deadline: of an execution, or of a whole group of them."""

    def __init__(self, ask: SendRequest) -> None:
        self.ask = ask
        self.late = False
        """The time is up: later requests are answered with nothing."""
        self._running: dict[asyncio.Future[list[Generation]], GenerateRequest] = {}

    @property
    def unanswered(self) -> list[GenerateRequest]:
        """The requests that the engines have not answered yet."""
        return list(self._running.values())

    async def answer(self, request: GenerateRequest) -> list[Generation]:
        """Returns one answer for each seed of the request; empty ones once the time is up."""
        if self.late:
            return [nothing("abort") for _ in request.seeds]
        asking = asyncio.ensure_future(self.ask(request))
        self._running[asking] = request
        try:
            await asyncio.wait([asking])
            if self.late and asking.cancelled():
                return [nothing("abort") for _ in request.seeds]
            return asking.result()
        finally:
            del self._running[asking]
            asking.cancel()

    def give_up(self) -> None:
        """Answers what is unanswered with nothing: an engine that was told to stop did not answer either."""
        assert self.late, "nothing is given up before its time"
        for asking in self._running:
            asking.cancel()


class PolicySession:
    """One execution's way to the policy."""

    def __init__(self, group: "PolicyGroup", number: int, seed: int) -> None:
        self.id = f"{group.prompt.index}-{number}"
        self.number = number
        self.prompt = group.prompt
        self.seed = seed
        self.sampling = group.wanted.sampling
        self.max_tokens = group.wanted.max_tokens
        self.max_turn_tokens = group.wanted.turn_limit
        self.chat = group.chat
        self.requests = group.requests
        """Shared by the sessions of a group, unless each runs on its own."""
        self._wanted = group.wanted
        self._turns = 0

    async def generate(self, tokens: Tokens, sampling: Sampling | None = None) -> Generation:
        """What the policy makes of `tokens` (rlrun.plugins.session.Session)."""
        chosen = self._wanted.sampling_for(tokens, sampling)
        if chosen is None:
            return nothing("length")
        turn, self._turns = self._turns, self._turns + 1
        prompt = f"{self._wanted.purpose}-{self.prompt.index}"
        name, session = f"{prompt}-{self.number}.{turn}", f"{prompt}/{self.number}"
        seeds = (turn_seed(self.seed, turn),)
        request = GenerateRequest(name, tokens, seeds, chosen, session, self._wanted.record_mask)
        [made] = await self.requests.answer(request)
        return made


class PolicyGroup:
    """All executions of a prompt."""

    def __init__(
        self, chat: Chat, wanted: RolloutSettings, prompt: Prompt, seeds: Sequence[int], ask: SendRequest
    ) -> None:
        self.chat = chat
        self.wanted = wanted
        self.prompt = prompt
        self.requests = Requests(ask)
        self._seeds = seeds
        self._turns = 0

    @cached_property
    def sessions(self) -> list[PolicySession]:
        """One for each execution; a group that only asks for all of them has no need of any."""
        return [PolicySession(self, number, seed) for number, seed in enumerate(self._seeds)]

    async def generate(self, tokens: Tokens, sampling: Sampling | None = None) -> list[Generation]:
        """One answer for each execution, in one request (rlrun.plugins.session.SessionGroup)."""
        chosen = self.wanted.sampling_for(tokens, sampling)
        if chosen is None:
            return [nothing("length") for _ in self._seeds]
        turn, self._turns = self._turns, self._turns + 1
        seeds = tuple(turn_seed(seed, turn) for seed in self._seeds)
        name = f"{self.wanted.purpose}-{self.prompt.index}"
        id = f"{name}.{turn}" if turn else name
        request = GenerateRequest(id, tokens, seeds, chosen, name, self.wanted.record_mask)
        return await self.requests.answer(request)


def nothing(finish: Literal["length", "abort"]) -> Generation:
    """An empty answer."""
    return Generation(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32), finish, ())
