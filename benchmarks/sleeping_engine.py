"""An engine that sleeps instead of computing, for whatever is measured or tested around engines.

client ──HTTP or channel──▶ samples wait ──▶ at most `max_running` sleep ──▶ length × `token_seconds` later
       ◀──────────────────── constant tokens, as many as the sample's seed draws ◀──────────┘

It reads requests and writes answers with the native engine's code. An abort ends a sample with as many tokens
as the time so far allows.
"""

import asyncio
import itertools
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from typing import Any

import numpy as np
from aiohttp import web

from rlrun.runner.engines.native.engine.requests import SampleInProgress
from rlrun.runner.engines.native.http.bodies import (
    GENERATE_BYTES,
    answer_user_errors,
    engine_guard,
    json_body,
    json_response,
    raw_response,
    read_body,
)
from rlrun.runner.engines.native.http.channel import ChannelEndpoint
from rlrun.runner.engines.native.http.protocol import parse_generate_request, sample_answer

_HOST = "127.0.0.1"
_SECONDS = 30.0
"""Deadline for calls into the server's thread."""


@dataclass(frozen=True, slots=True)
class SleepingSetup:
    """How long answers take, and how long they are."""

    max_running: int = 256
    """Limit of samples that sleep at once; further samples wait."""
    token_seconds: float = 0.01
    """Seconds per token, however many samples sleep."""
    mean_tokens: float = 200.0
    """Mean length of a response, before it is cut to the request's limits."""
    spread: float = 1.0
    """Standard deviation of the lengths, divided by their mean."""
    port: int = 0
    """Port to listen on; 0: a free one."""
    api_key: str | None = field(default=None, repr=False)
    """The key that every request except `/health` needs; None: no key is needed."""


@dataclass(eq=False, slots=True)
class _Sleep:
    """The sleep of one sample."""

    length: int
    start: float
    timer: asyncio.TimerHandle


class SleepingServer:
    """The engine, in a thread of this process."""

    def __init__(self, setup: SleepingSetup) -> None:
        self._setup = setup
        self._waiting: deque[SampleInProgress] = deque()
        self.running: dict[SampleInProgress, _Sleep] = {}
        self.channel = ChannelEndpoint(self._answer)
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sleeping-engine", daemon=True)
        self._runner: web.AppRunner | None = None

    @property
    def busy(self) -> bool:
        """Whether samples sleep or wait."""
        return bool(self.running or self._waiting)

    def start(self) -> str:
        """Starts to listen and returns the URL. Raises OSError when the port is taken."""
        listener = socket.create_server((_HOST, self._setup.port), backlog=1024)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(listener), self._loop).result(_SECONDS)
        return f"http://{_HOST}:{listener.getsockname()[1]}"

    def stop(self) -> None:
        """Ends all samples and the thread. May be called twice."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        asyncio.run_coroutine_threadsafe(runner.cleanup(), self._loop).result(_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)
        self._loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        guard = engine_guard(_HOST, self._setup.api_key)
        app = web.Application(client_max_size=GENERATE_BYTES, middlewares=[guard, answer_user_errors])
        app.router.add_get("/health", self._say_nothing)
        app.router.add_get("/model_info", self._say_nothing)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort_request)
        self.channel.add_to(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, listener, shutdown_timeout=5).start()

    async def _say_nothing(self, request: web.Request) -> web.Response:
        return json_response({})

    async def _generate(self, request: web.Request) -> web.Response:
        return raw_response(await self._answer(await read_body(request, GENERATE_BYTES)))

    async def _answer(self, body: dict[str, Any]) -> bytes:
        """Returns the answer to the body of a /generate call, as JSON."""
        samples, is_batch = parse_generate_request(
            body, lambda: f"r{next(self._numbers)}", lambda: next(self._numbers)
        )
        try:
            await self._sleep(samples)
        except asyncio.CancelledError:  # the client went away
            abandoned = set(samples)
            self._abort(lambda sample: sample in abandoned)
            raise
        answers = [sample_answer(sample, body, 0) for sample in samples]
        return json_body(answers if is_batch else answers[0])

    async def _abort_request(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        abort_all, sample_id = bool(body.get("abort_all")), body.get("rid")
        self._abort(lambda sample: abort_all or sample.id == sample_id)
        return json_response({})

    async def _sleep(self, samples: Sequence[SampleInProgress]) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        remaining = itertools.count(len(samples) - 1, -1)
        for sample in samples:
            sample.on_done = lambda _: None if next(remaining) or done.done() else done.set_result(None)
        self._waiting.extend(samples)
        self._fill()
        await done

    def _fill(self) -> None:
        """Lets waiting samples sleep, as far as the limit allows."""
        while self._waiting and len(self.running) < self._setup.max_running:
            sample = self._waiting.popleft()
            sample.starts.append((0, 0))
            length, now = self._length(sample), self._loop.time()
            timer = self._loop.call_at(now + length * self._setup.token_seconds, self._wake, sample)
            self.running[sample] = _Sleep(length, now, timer)

    def _wake(self, sample: SampleInProgress) -> None:
        length = self.running.pop(sample).length
        _end(sample, length, "length" if length == sample.params.max_new_tokens else "stop")
        self._fill()

    def _abort(self, is_chosen: Callable[[SampleInProgress], bool]) -> None:
        for sample in list(filter(is_chosen, self._waiting)):
            self._waiting.remove(sample)
            _end(sample, 0, "abort")
        for sample in list(filter(is_chosen, self.running)):
            sleep = self.running.pop(sample)
            sleep.timer.cancel()
            tokens = int((self._loop.time() - sleep.start) / self._setup.token_seconds)
            _end(sample, min(sleep.length, tokens), "abort")
        self._fill()

    def _length(self, sample: SampleInProgress) -> int:
        """Returns the sample's length, drawn from a log-normal distribution by its seed alone."""
        sigma = sqrt(log(1 + self._setup.spread**2))
        mean = log(self._setup.mean_tokens) - sigma**2 / 2
        length = round(random.Random(sample.seed).lognormvariate(mean, sigma))
        return min(max(1, sample.params.min_new_tokens, length), sample.params.max_new_tokens)


def _end(sample: SampleInProgress, tokens: int, reason: str) -> None:
    sample.tokens = np.full(tokens, 7, dtype=np.int32)
    sample.log_probs = np.full(tokens, -1.0, dtype=np.float32)
    sample.finish = {"type": reason}
    sample.on_done(sample)
