"""The endpoints that generate or score: they submit jobs to the engine's thread and wait for them."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.requests import Job
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.bodies import GENERATE_BYTES, error_response, json_response, read_body
from rlrun.runner.engines.native.http.chat import Chat
from rlrun.runner.engines.native.http.protocol import parse_generate_request, sample_answer


class GenerationEndpoints:
    """One method per endpoint, run by the server's event loop."""

    def __init__(self, engine: Engine, setup: EngineSetup) -> None:
        self._engine = engine
        self._setup = setup
        self._chat = Chat(setup.model_folder)
        self._numbers = itertools.count()

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes, with SGLang's paths."""
        return [web.post("/generate", self.generate), web.post("/v1/chat/completions", self.chat)]

    async def generate(self, request: web.Request) -> web.Response:
        """Generates samples of one or several prompts; answers when the last one is done."""
        body = await read_body(request, GENERATE_BYTES)
        jobs, several = parse_generate_request(body, self._new_id, self._new_seed)
        for job in jobs:
            self._engine.check(job)
        if any(job.params.max_new_tokens == 0 for job in jobs):
            await self._score(jobs, body)
            return json_response(self._answers(jobs, body, several))
        if failed := await self._finish(jobs):
            return failed
        return json_response(self._answers(jobs, body, several))

    async def chat(self, request: web.Request) -> web.Response:
        """Answers a conversation in the format of OpenAI's API, without streaming."""
        body = await read_body(request)
        limit = self._engine.loaded.max_length
        job = await asyncio.to_thread(self._chat.job, body, self._new_id(), self._new_seed(), limit)
        self._engine.check(job)
        if failed := await self._finish([job]):
            return failed
        return json_response(self._chat.answer(job, body))

    async def _score(self, jobs: Sequence[Job], body: dict[str, Any]) -> None:
        """Computes the log-probs of all tokens of the prompts at temperature 1, as SGLang does."""
        if any(job.params.max_new_tokens for job in jobs):
            raise ValueError(
                "max_new_tokens 0, which scores prompts, cannot be mixed with other values in one call"
            )
        if not body.get("return_logprob") or body.get("logprob_start_len") != 0:
            raise ValueError(
                "max_new_tokens 0 scores prompts: add return_logprob = true and logprob_start_len = 0"
            )
        await asyncio.gather(*(asyncio.wrap_future(future) for future in self._engine.score(jobs)))

    def _answers(self, jobs: Sequence[Job], body: dict[str, Any], several: bool) -> Any:
        answers = [sample_answer(job, bool(body.get("return_logprob")), self._engine.version) for job in jobs]
        return answers if several else answers[0]

    async def _finish(self, jobs: Sequence[Job]) -> web.Response | None:
        """Runs jobs to their end; returns an error response if the engine failed."""
        try:
            await self._run(jobs)
        except asyncio.CancelledError:  # the client closed the connection
            abandoned = {id(job) for job in jobs}
            self._engine.abort(lambda job: id(job) in abandoned)
            raise
        for job in jobs:
            if job.finish is not None and job.finish["type"] == "error":
                return error_response(500, f"the engine failed: {job.finish['message']}")
        return None

    async def _run(self, jobs: Sequence[Job]) -> None:
        """Submits jobs and waits for all of them.

        There is no timeout: a client that does not want to wait any longer closes the connection.
        """
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        # next() of a count is atomic; on_done runs in the engine's thread.
        num_unfinished = itertools.count(len(jobs) - 1, -1)

        def on_done(_: Job) -> None:
            if next(num_unfinished) == 0:
                loop.call_soon_threadsafe(_resolve, finished)

        for job in jobs:
            job.on_done = on_done
        self._engine.submit(jobs)
        await finished

    def _new_id(self) -> str:
        return f"request-{next(self._numbers)}"

    def _new_seed(self) -> int:
        return (self._setup.seed << 40) + (next(self._numbers) << 16)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
