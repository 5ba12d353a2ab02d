"""The endpoints of the native engine, as SGLang has them."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, get_args

import orjson
from aiohttp import web

from rlrun.runner.engines.native.chat import Chat
from rlrun.runner.engines.native.engine import Engine, Part, parse_version
from rlrun.runner.engines.native.protocol import answer, parse_generate, parse_manifest
from rlrun.runner.engines.native.requests import Job
from rlrun.runner.engines.setup import EngineSetup

T = TypeVar("T")
CONTROL_SECONDS = 120.0
"""A control call waits this long for the step it may not interrupt."""
Handler = Callable[[web.Request], Awaitable[web.Response]]


class Handlers:
    """One method for each endpoint; they run in the server's event loop."""

    def __init__(self, engine: Engine, setup: EngineSetup) -> None:
        self._engine = engine
        self._setup = setup
        self._chat = Chat(setup.model_folder)
        self._numbers = itertools.count()

    def routes(self) -> list[web.RouteDef]:
        """Paths as SGLang has them; a control call may be a GET or a POST."""
        get: list[tuple[str, Handler]] = [
            ("/health", self.health),
            ("/model_info", self.model_info),
            ("/get_model_info", self.model_info),
        ]
        post: list[tuple[str, Handler]] = [
            ("/generate", self.generate),
            ("/v1/chat/completions", self.chat),
            ("/abort_request", self.abort),
            ("/pause_generation", self.pause),
            ("/continue_generation", self.resume),
            ("/flush_cache", self.flush_cache),
            ("/release_memory_occupation", self.release),
            ("/resume_memory_occupation", self.take_back),
            ("/update_weights_from_tensor", self.update_from_tensor),
            ("/update_weights_from_disk", self.update_from_disk),
        ]
        return [web.get(path, handler) for path, handler in get] + [
            web.post(path, handler) for path, handler in post
        ]

    async def generate(self, request: web.Request) -> web.Response:
        """Samples of one or many prompts, all admitted together; answers when the last one is done."""
        body = await _body(request)
        jobs, several = parse_generate(body, self._new_id, self._new_seed)
        for job in jobs:
            self._engine.check(job)
        if any(job.params.max_new_tokens == 0 for job in jobs):
            await self._score(jobs, body)
            return _json(self._answers(jobs, body, several))
        if failed := await self._finish(jobs):
            return failed
        return _json(self._answers(jobs, body, several))

    async def chat(self, request: web.Request) -> web.Response:
        """One answer to a conversation, as OpenAI's API has it; nothing is streamed."""
        body = await _body(request)
        limit = self._engine.loaded.max_length
        job = await asyncio.to_thread(self._chat.job, body, self._new_id(), self._new_seed(), limit)
        self._engine.check(job)
        if failed := await self._finish([job]):
            return failed
        return _json(self._chat.answer(job, body))

    async def abort(self, request: web.Request) -> web.Response:
        """`{"abort_all": true}`, or `{"rid": id}` of a sample or of a request of several."""
        body = await _body(request)
        name = body.get("rid")
        if body.get("abort_all"):
            count = await _done(self._engine.abort(lambda job: True), "aborting")
        elif isinstance(name, str) and name:
            chosen = self._engine.abort(lambda job: job.id == name or job.id.rpartition("-")[0] == name)
            count = await _done(chosen, "aborting")
        else:
            raise ValueError('abort_request needs {"rid": id} or {"abort_all": true}')
        return _json({"aborted": count})

    async def pause(self, request: web.Request) -> web.Response:
        """`{"mode": "abort" | "in_place" | "retract"}`; requests sent while paused wait."""
        mode = (await _body(request)).get("mode", "abort")
        if mode not in ("abort", "in_place", "retract"):
            raise ValueError(f"mode {mode!r}; one of abort, in_place, retract")
        await _done(self._engine.pause(mode), "pausing")
        return _json({"status": "ok"})

    async def resume(self, request: web.Request) -> web.Response:
        """Go on after a pause."""
        await _done(self._engine.resume(), "continuing")
        return _json({"status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Nothing is cached beyond the life of its samples; this only checks that none has anything there."""
        if await _done(self._engine.holds_cache(), "flushing"):
            return _error(400, "samples are running: abort, retract or wait for them before flushing")
        return _json({"success": True})

    async def release(self, request: web.Request) -> web.Response:
        """`{"tags": ["weights", "kv_cache"]}`: give that memory away; 400 while samples run or wait."""
        await _done(self._engine.release(_tags(await _body(request))), "releasing memory")
        return _json({"success": True})

    async def take_back(self, request: web.Request) -> web.Response:
        """The opposite, by the same tags; weights come with the next update."""
        await _done(self._engine.take_back(_tags(await _body(request))), "taking memory back")
        return _json({"success": True})

    async def health(self, request: web.Request) -> web.Response:
        """200 while the engine works, 503 with the reason after it failed; runs no generation."""
        if self._engine.failure is None:
            return _json({"status": "ok"})
        return _error(503, f"the engine failed: {self._engine.failure}")

    async def model_info(self, request: web.Request) -> web.Response:
        """What is served."""
        loaded = self._engine.loaded
        return _json(
            {
                "model_path": self._setup.model_folder,
                "is_generation": True,
                "weight_version": str(self._engine.version),
                "model_type": loaded.config.family,
                "vocab_size": loaded.config.vocab_size,
                "dtype": self._setup.dtype,
                "max_length": loaded.max_length,
                "max_cache_tokens": loaded.cache_tokens,
                "max_running": self._setup.max_running,
            }
        )

    async def update_from_tensor(self, request: web.Request) -> web.Response:
        """Adopt the weights of a shared-memory segment; pickled tensors are not accepted."""
        body = await _body(request)
        if body.get("load_format") != "shared_memory":
            raise ValueError(
                'load_format must be "shared_memory", with a manifest: this engine unpickles nothing'
            )
        manifest = parse_manifest(body.get("manifest"))
        await _done(await asyncio.to_thread(self._engine.load_shared, manifest), "taking over weights")
        return self._updated()

    async def update_from_disk(self, request: web.Request) -> web.Response:
        """Read a Hugging Face folder; the old weights stay if it does not fit."""
        body = await _body(request)
        folder = body.get("model_path")
        if not isinstance(folder, str):
            raise ValueError("update_weights_from_disk needs model_path")
        version = parse_version(body.get("weight_version", self._engine.version))
        await _done(await asyncio.to_thread(self._engine.load_folder, folder, version), "taking over weights")
        return self._updated()

    async def _score(self, jobs: Sequence[Job], body: dict[str, Any]) -> None:
        """Log-probs of given tokens, as SGLang has them: all of the prompt's, at temperature 1."""
        if any(job.params.max_new_tokens for job in jobs):
            raise ValueError("max_new_tokens 0 and others cannot be mixed in one call")
        if not body.get("return_logprob") or body.get("logprob_start_len") != 0:
            raise ValueError(
                "max_new_tokens 0 asks for log-probs: add return_logprob and logprob_start_len 0"
            )
        await asyncio.gather(*(asyncio.wrap_future(future) for future in self._engine.score(jobs)))

    def _answers(self, jobs: Sequence[Job], body: dict[str, Any], several: bool) -> Any:
        answers = [answer(job, bool(body.get("return_logprob")), self._engine.version) for job in jobs]
        return answers if several else answers[0]

    async def _finish(self, jobs: Sequence[Job]) -> web.Response | None:
        """Run jobs to their end; what is answered instead when the engine failed."""
        try:
            await self._run(jobs)
        except asyncio.CancelledError:  # the client went away
            gone = {id(job) for job in jobs}
            self._engine.abort(lambda job: id(job) in gone)
            raise
        for job in jobs:
            if job.finish is not None and job.finish["type"] == "error":
                return _error(500, f"the engine failed: {job.finish['message']}")
        return None

    async def _run(self, jobs: Sequence[Job]) -> None:
        """Submit jobs and wait for them all, until the client's deadline: it then closes the connection."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        left = itertools.count(len(jobs) - 1, -1)

        def on_done(_: Job) -> None:
            if next(left) == 0:
                loop.call_soon_threadsafe(_resolve, finished)

        for job in jobs:
            job.on_done = on_done
        self._engine.submit(jobs)
        await finished

    def _updated(self) -> web.Response:
        return _json(
            {"success": True, "message": "weights updated", "weight_version": str(self._engine.version)}
        )

    def _new_id(self) -> str:
        return f"request-{next(self._numbers)}"

    def _new_seed(self) -> int:
        return (self._setup.seed << 40) + (next(self._numbers) << 16)


def _tags(body: dict[str, Any]) -> list[Part]:
    tags = body.get("tags") or get_args(Part)
    if not set(tags) <= set(get_args(Part)):
        raise ValueError(f"tags {tags}; known are {', '.join(get_args(Part))}")
    return list(tags)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@web.middleware
async def user_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """What the client can mend is a 400 with the message."""
    try:
        return await handler(request)
    except ValueError as error:
        return _error(400, str(error))


async def _body(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


async def _done(future: "Future[T]", what: str) -> T:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), CONTROL_SECONDS)
    except TimeoutError:
        raise web.HTTPServiceUnavailable(
            text=f"{what}: the engine finished no step within {CONTROL_SECONDS:g} s"
        ) from None


def _json(payload: Any, status: int = 200) -> web.Response:
    body = orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY)
    return web.Response(body=body, status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message}}, status)
