"""Serves a sleeping engine over SGLang's HTTP protocol, for load tests of everything around engines.

client ──HTTP──▶ handlers ──samples──▶ Sleepers
       ◀─answers─         ◀──done──
"""

import asyncio
import itertools
import socket
import threading
from collections.abc import Sequence
from typing import Any

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
from rlrun.runner.engines.native.http.protocol import parse_generate_request, parse_version, sample_answer
from rlrun.runner.engines.sleeping.setup import SleepingSetup
from rlrun.runner.engines.sleeping.sleepers import Sleepers

_SECONDS = 30.0
"""Deadline for calls into the server's thread."""


class SleepingServer:
    """The server, in a thread of this process."""

    def __init__(self, setup: SleepingSetup) -> None:
        self._setup = setup
        self._sleepers = Sleepers(setup)
        self._channel = ChannelEndpoint(self._answer)
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rlrun-sleeping", daemon=True)
        self._runner: web.AppRunner | None = None

    def start(self) -> str:
        """Starts to listen and returns the URL. Raises OSError when the port is taken."""
        listener = socket.create_server((self._setup.host, self._setup.port or 0), backlog=1024)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(listener), self._loop).result(_SECONDS)
        host, port = listener.getsockname()[:2]
        return f"http://{host}:{port}"

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
        guard = engine_guard(self._setup.host, self._setup.api_key)
        app = web.Application(client_max_size=GENERATE_BYTES, middlewares=[guard, answer_user_errors])
        app.add_routes(
            [
                web.get("/health", self._acknowledge),
                web.get("/model_info", self._model_info),
                web.post("/generate", self._generate),
                web.post("/abort_request", self._abort),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/flush_cache", self._acknowledge),
                web.post("/update_weights_from_tensor", self._update),
            ]
        )
        self._channel.add_to(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, listener, shutdown_timeout=5).start()

    async def _generate(self, request: web.Request) -> web.Response:
        return raw_response(await self._answer(await read_body(request, GENERATE_BYTES)))

    async def _answer(self, body: dict[str, Any]) -> bytes:
        """Returns the answer to the body of a /generate call, as JSON."""
        samples, is_batch = parse_generate_request(
            body, lambda: f"r{next(self._numbers)}", lambda: next(self._numbers)
        )
        try:
            await self._run(samples)
        except asyncio.CancelledError:  # the client went away
            aborted = set(map(id, samples))
            self._sleepers.abort(lambda sample: id(sample) in aborted)
            raise
        answers = [sample_answer(sample, body, self._sleepers.version) for sample in samples]
        return json_body(answers if is_batch else answers[0])

    async def _run(self, samples: Sequence[SampleInProgress]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        remaining = itertools.count(len(samples) - 1, -1)
        for sample in samples:
            sample.on_done = lambda _: None if next(remaining) or done.done() else done.set_result(None)
        self._sleepers.submit(samples)
        await done

    async def _abort(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        abort_all, sample_id = bool(body.get("abort_all")), body.get("rid")
        return json_response(
            {"aborted": self._sleepers.abort(lambda sample: abort_all or sample.id == sample_id)}
        )

    async def _pause(self, request: web.Request) -> web.Response:
        if (await read_body(request)).get("mode", "abort") == "abort":
            self._sleepers.abort(lambda sample: True)
        self._sleepers.pause()
        return json_response({})

    async def _continue(self, request: web.Request) -> web.Response:
        self._sleepers.resume()
        return json_response({})

    async def _update(self, request: web.Request) -> web.Response:
        """Notes the version; no weights are read."""
        body = await read_body(request)
        self._sleepers.set_version(parse_version(body.get("weight_version")))
        return json_response({"success": True, "weight_version": str(self._sleepers.version)})

    async def _model_info(self, request: web.Request) -> web.Response:
        return json_response({"model_path": "", "weight_version": str(self._sleepers.version)})

    async def _acknowledge(self, request: web.Request) -> web.Response:
        return json_response({})
