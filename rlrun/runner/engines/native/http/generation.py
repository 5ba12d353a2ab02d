"""The endpoints that generate or score: they submit samples to the engine's thread and wait for them."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.requests import SampleInProgress
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.bodies import (
    GENERATE_BYTES,
    EngineFailure,
    json_body,
    json_response,
    raw_response,
    read_body,
)
from rlrun.runner.engines.native.http.chat import Chat
from rlrun.runner.engines.native.http.image_data import ImageReader
from rlrun.runner.engines.native.http.protocol import parse_generate_request, sample_answer


class GenerationEndpoints:
    """One method per endpoint, run by the server's event loop."""

    def __init__(self, engine: Engine, setup: EngineSetup) -> None:
        self._engine = engine
        self._setup = setup
        self._images = ImageReader(Path(setup.model_folder), engine.loaded.architecture.vision)
        self._chat = Chat(setup.model_folder, self._images, setup.code)
        self._numbers = itertools.count()

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes, with SGLang's paths."""
        return [web.post("/generate", self.generate), web.post("/v1/chat/completions", self.chat)]

    async def generate(self, request: web.Request) -> web.Response:
        """Generates samples of one or several prompts; answers when the last one is done."""
        return raw_response(await self.answer(await read_body(request, GENERATE_BYTES)))

    async def answer(self, body: dict[str, Any]) -> bytes:
        """Returns the answer to the body of a /generate call, as JSON.

        Raises ValueError for a body that is wrong, EngineFailure if the engine failed.
        """
        samples, several = parse_generate_request(body, self._new_id, self._new_seed)
        if body.get("image_data"):
            await asyncio.to_thread(self._images.attach, samples, body)
            await asyncio.wrap_future(self._engine.prepare_images())
        for sample in samples:
            self._engine.check(sample)
        if any(sample.params.max_new_tokens == 0 for sample in samples):
            await self._score(samples, body)
        elif any(sample.options.top_logprobs_num for sample in samples):
            raise ValueError("top_logprobs_num is for prompts that are scored: add max_new_tokens = 0")
        else:
            await self._finish(samples)
        answers = [sample_answer(sample, body, self._engine.version) for sample in samples]
        return json_body(answers if several else answers[0])

    async def chat(self, request: web.Request) -> web.Response:
        """Answers a conversation in the format of OpenAI's API, without streaming."""
        body = await read_body(request, GENERATE_BYTES)
        limit = self._engine.loaded.max_length
        sample = await asyncio.to_thread(self._chat.sample, body, self._new_id(), self._new_seed(), limit)
        if sample.images.patches:
            await asyncio.wrap_future(self._engine.prepare_images())
        self._engine.check(sample)
        await self._finish([sample])
        return json_response(self._chat.answer(sample, body))

    async def _score(self, samples: Sequence[SampleInProgress], body: dict[str, Any]) -> None:
        """Computes the log-probs of all tokens of the prompts at temperature 1, as SGLang does."""
        if any(sample.params.max_new_tokens for sample in samples):
            raise ValueError(
                "max_new_tokens 0, which scores prompts, cannot be mixed with other values in one call"
            )
        if not body.get("return_logprob") or body.get("logprob_start_len", -1) == -1:
            raise ValueError(
                "max_new_tokens 0 scores prompts: add return_logprob = true and logprob_start_len = 0"
            )
        await asyncio.gather(*(asyncio.wrap_future(future) for future in self._engine.score(samples)))

    async def _finish(self, samples: Sequence[SampleInProgress]) -> None:
        """Runs samples to their end. Raises EngineFailure if the engine failed."""
        try:
            await self._run(samples)
        except asyncio.CancelledError:  # the client closed the connection, or cancelled its call
            abandoned = {id(sample) for sample in samples}
            self._engine.abort(lambda sample: id(sample) in abandoned)
            raise
        for sample in samples:
            if sample.finish is not None and sample.finish["type"] == "error":
                raise EngineFailure(f"the engine failed: {sample.finish['message']}")

    async def _run(self, samples: Sequence[SampleInProgress]) -> None:
        """Submits samples and waits for all of them.

        There is no timeout: a client that does not want to wait any longer closes the connection.
        """
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        # next() of a count is atomic; on_done runs in the engine's thread.
        num_unfinished = itertools.count(len(samples) - 1, -1)

        def on_done(_: SampleInProgress) -> None:
            if next(num_unfinished) == 0:
                loop.call_soon_threadsafe(_resolve, finished)

        for sample in samples:
            sample.on_done = on_done
        self._engine.submit(samples)
        await finished

    def _new_id(self) -> str:
        return f"request-{next(self._numbers)}"

    def _new_seed(self) -> int:
        return (self._setup.seed << 40) + (next(self._numbers) << 16)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
