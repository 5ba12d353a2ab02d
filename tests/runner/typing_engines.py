"""Engines that type a token a turn of the event loop, and can be stopped in between."""

import asyncio
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from rlrun.plugins.generation import Generation
from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest

PROMPT = 3
"""Tokens of the fakes' prompts."""


def token_at(seed: int, position: int) -> int:
    """What is drawn at a place depends on the seed and the place alone: as engines do it."""
    return zlib.crc32(f"{seed} {position}".encode()) % 100


class TypingEngines:
    """Sample number k of prompt i has `length(i, k)` tokens, its prompt's index is its first prompt token."""

    def __init__(self, length: Callable[[int, int], int]) -> None:
        self.length = length
        self.version = 0
        self.requests: list[GenerateRequest] = []
        self.deaf = False
        """Aborts are not heard."""
        self.most = 0
        """Samples that were asked for at the same time, at most."""
        self._numbers: dict[int, dict[int, int]] = {}
        self._running: dict[int, GenerateRequest] = {}
        self._aborted: set[int] = set()

    def again(self) -> "TypingEngines":
        """Others that type the same, as after a new start."""
        others = TypingEngines(self.length)
        others._numbers = self._numbers
        return others

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.requests.append(request)
        index, before = int(request.tokens[0]), len(request.tokens) - PROMPT
        numbers = self._numbers.setdefault(index, {})
        wanted = [self.length(index, numbers.setdefault(seed, len(numbers))) for seed in request.seeds]
        made: list[list[tuple[int, int]]] = [[] for _ in wanted]
        budget, key = request.sampling.max_new_tokens, id(request)
        self._running[key] = request
        self.most = max(self.most, sum(len(one.seeds) for one in self._running.values()))
        while key not in self._aborted:
            for seed, length, tokens in zip(request.seeds, wanted, made, strict=True):
                if len(tokens) < min(length - before, budget):
                    place = PROMPT + before + len(tokens)
                    tokens.append((token_at(seed, place), self.version))
            await asyncio.sleep(0)
            if all(
                len(one) == min(length - before, budget) for one, length in zip(made, wanted, strict=True)
            ):
                break
        self._aborted.discard(key)
        del self._running[key]
        return [_generation(one, length - before, budget) for one, length in zip(made, wanted, strict=True)]

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        return [await self.generate(request) for request in requests]

    async def abort(self, request: GenerateRequest) -> None:
        self._aborted |= {key for key, one in self._running.items() if one.id == request.id and not self.deaf}

    async def abort_all(self) -> None:
        self._aborted |= set() if self.deaf else set(self._running)

    async def update_weights(self, update: object) -> int:
        raise NotImplementedError


def _generation(made: Sequence[tuple[int, int]], wanted: int, budget: int) -> Generation:
    finish = "stop" if len(made) == wanted else "length" if len(made) == budget else "abort"
    spans: list[VersionSpan] = []
    for place, (_, version) in enumerate(made):
        start = spans.pop().start if spans and spans[-1].version == version else place
        spans.append(VersionSpan(version, start, place + 1))
    tokens = np.array([token for token, _ in made], dtype=np.int32)
    log_probs = np.array([-version - 0.5 for _, version in made], dtype=np.float32)
    return Generation(tokens, log_probs, finish, tuple(spans))  # type: ignore[arg-type]
