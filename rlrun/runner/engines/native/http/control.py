"""The endpoints that steer the engine, give it weights, or ask how it is; none of them generates."""

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, get_args

from aiohttp import web

from rlrun.runner.engines.native.engine.engine import Engine, Part
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.bodies import Handler, error_response, json_response, read_body
from rlrun.runner.engines.native.http.protocol import parse_manifest, parse_version
from rlrun.runner.host.segment_files import belongs_to_job

T = TypeVar("T")
CONTROL_SECONDS = 120.0
"""A control call waits this long for the step it may not interrupt."""


class ControlEndpoints:
    """One method for each endpoint; they run in the server's event loop."""

    def __init__(self, engine: Engine, setup: EngineSetup) -> None:
        self._engine = engine
        self._setup = setup

    def routes(self) -> list[web.RouteDef]:
        """Paths as SGLang has them; a control call may be a GET or a POST."""
        get: list[tuple[str, Handler]] = [
            ("/health", self.health),
            ("/model_info", self.model_info),
            ("/get_model_info", self.model_info),
        ]
        post: list[tuple[str, Handler]] = [
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

    async def abort(self, request: web.Request) -> web.Response:
        """`{"abort_all": true}`, or `{"rid": id}` of a sample or of a request of several."""
        body = await read_body(request)
        name = body.get("rid")
        if body.get("abort_all"):
            count = await _done(self._engine.abort(lambda job: True), "aborting")
        elif isinstance(name, str) and name:
            chosen = self._engine.abort(lambda job: job.id == name or job.id.rpartition("-")[0] == name)
            count = await _done(chosen, "aborting")
        else:
            raise ValueError('abort_request needs {"rid": id} or {"abort_all": true}')
        return json_response({"aborted": count})

    async def pause(self, request: web.Request) -> web.Response:
        """`{"mode": "abort" | "in_place" | "retract"}`; requests sent while paused wait."""
        mode = (await read_body(request)).get("mode", "abort")
        if mode not in ("abort", "in_place", "retract"):
            raise ValueError(f"mode {mode!r}; one of abort, in_place, retract")
        await _done(self._engine.pause(mode), "pausing")
        return json_response({"status": "ok"})

    async def resume(self, request: web.Request) -> web.Response:
        """Go on after a pause."""
        await _done(self._engine.resume(), "continuing")
        return json_response({"status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Nothing is cached beyond the life of its samples; this only checks that none has anything there."""
        if await _done(self._engine.holds_cache(), "flushing"):
            return error_response(400, "samples are running: abort, retract or wait for them before flushing")
        return json_response({"success": True})

    async def release(self, request: web.Request) -> web.Response:
        """`{"tags": ["weights", "kv_cache"]}`: give that memory away; 400 while samples run or wait."""
        await _done(self._engine.release(_tags(await read_body(request))), "releasing memory")
        return json_response({"success": True})

    async def take_back(self, request: web.Request) -> web.Response:
        """The opposite, by the same tags; weights come with the next update."""
        await _done(self._engine.take_back(_tags(await read_body(request))), "taking memory back")
        return json_response({"success": True})

    async def health(self, request: web.Request) -> web.Response:
        """200 while the engine works, 503 with the reason after it failed; runs no generation."""
        if self._engine.failure is None:
            return json_response({"status": "ok"})
        return error_response(503, f"the engine failed: {self._engine.failure}")

    async def model_info(self, request: web.Request) -> web.Response:
        """What is served."""
        loaded = self._engine.loaded
        return json_response(
            {
                "model_path": self._setup.model_folder,
                "is_generation": True,
                "weight_version": str(self._engine.version),
                "model_type": loaded.architecture.family,
                "vocab_size": loaded.architecture.vocab,
                "dtype": self._setup.dtype,
                "max_length": loaded.max_length,
                "max_cache_tokens": loaded.cache_tokens,
                "max_running": self._setup.max_running,
            }
        )

    async def update_from_tensor(self, request: web.Request) -> web.Response:
        """Adopt the weights of a shared-memory segment; pickled tensors are not accepted."""
        body = await read_body(request)
        if body.get("load_format") != "shared_memory":
            raise ValueError(
                'load_format must be "shared_memory", with a manifest: this engine unpickles nothing'
            )
        manifest = parse_manifest(body.get("manifest"))
        if self._setup.job is None or not belongs_to_job(manifest.segment, self._setup.job):
            raise ValueError(f"{manifest.segment!r} is not a segment of the job that started this engine")
        await _done(await asyncio.to_thread(self._engine.load_shared, manifest), "taking over weights")
        return self._updated()

    async def update_from_disk(self, request: web.Request) -> web.Response:
        """Read a Hugging Face folder; the old weights stay if it does not fit."""
        body = await read_body(request)
        folder = _permitted(body.get("model_path"), self._setup)
        version = parse_version(body.get("weight_version", self._engine.version))
        await _done(await asyncio.to_thread(self._engine.load_folder, folder, version), "taking over weights")
        return self._updated()

    def _updated(self) -> web.Response:
        return json_response(
            {"success": True, "message": "weights updated", "weight_version": str(self._engine.version)}
        )


def _permitted(folder: Any, setup: EngineSetup) -> str:
    """A folder that weights may be read from. ValueError for any other."""
    if not isinstance(folder, str) or not folder or "\0" in folder:
        raise ValueError("update_weights_from_disk needs model_path")
    path = Path(folder).resolve()
    named = [setup.model_folder, *setup.weight_folders]
    if not any(path.is_relative_to(Path(one).resolve()) for one in named):
        raise ValueError(
            f"model_path {folder!r} is below none of the folders that this engine was started with, "
            f"{', '.join(named)}: start it with --weights FOLDER"
        )
    return str(path)


def _tags(body: dict[str, Any]) -> list[Part]:
    tags = body.get("tags") or list(get_args(Part))
    if not isinstance(tags, list) or not all(tag in get_args(Part) for tag in tags):
        raise ValueError(f"tags {tags}; known are {', '.join(get_args(Part))}")
    return tags


async def _done(future: "Future[T]", what: str) -> T:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), CONTROL_SECONDS)
    except TimeoutError:
        raise web.HTTPServiceUnavailable(
            text=f"{what}: the engine finished no step within {CONTROL_SECONDS:g} s"
        ) from None
