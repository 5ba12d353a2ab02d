"""The endpoints that control the engine, update its weights or query its state; none of them generates."""

import asyncio
from concurrent.futures import Future
from typing import Any, TypeVar, get_args

from aiohttp import web

from rlrun.runner.contracts.channel_frames import CHANNEL_PATH
from rlrun.runner.engines.native.engine.engine import Engine, MemoryPart
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.bodies import Handler, error_response, json_response, read_body
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.weights.carriers.reader import Reader, ReadingEngine
from rlrun.runner.weights.carriers.table import readers_of

T = TypeVar("T")
CONTROL_SECONDS = 120.0
"""How long a control call waits for the current step, which it cannot interrupt."""


class ControlEndpoints:
    """One method per endpoint, run by the server's event loop."""

    def __init__(self, engine: Engine, setup: EngineSetup) -> None:
        self._engine = engine
        self._setup = setup
        folders = (setup.model_folder, *setup.weight_folders)
        shapes, device = weight_shapes(engine.loaded.architecture), engine.loaded.scheduler.model.device
        self._readers = readers_of(ReadingEngine(shapes, device, setup.job, folders))
        self._updating = asyncio.Lock()
        """Held during an update: what readers keep from one to the next is not for two at a time."""

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes, with SGLang's paths."""
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
            ("/resume_memory_occupation", self.restore),
            ("/update_weights_from_tensor", self.update_from_tensor),
            ("/update_weights_from_disk", self.update_from_disk),
        ]
        return [web.get(path, handler) for path, handler in get] + [
            web.post(path, handler) for path, handler in post
        ]

    async def abort(self, request: web.Request) -> web.Response:
        """Aborts all samples (`{"abort_all": true}`), or those of one request or one sample (`{"rid":
        id}`).
        """
        body = await read_body(request)
        name = body.get("rid")
        if body.get("abort_all"):
            count = await _finished(self._engine.abort(lambda sample: True), "aborting")
        elif isinstance(name, str) and name:
            aborted = self._engine.abort(
                lambda sample: sample.id == name or sample.id.rpartition("-")[0] == name
            )
            count = await _finished(aborted, "aborting")
        else:
            raise ValueError('abort_request needs {"rid": id} or {"abort_all": true}')
        return json_response({"aborted": count})

    async def pause(self, request: web.Request) -> web.Response:
        """Pauses with `{"mode": "abort" | "in_place" | "retract"}`; requests wait until generation is
        resumed.
        """
        mode = (await read_body(request)).get("mode", "abort")
        if mode not in ("abort", "in_place", "retract"):
            raise ValueError(f"mode {mode!r} is unknown; use abort, in_place or retract")
        await _finished(self._engine.pause(mode), "pausing")
        return json_response({"status": "ok"})

    async def resume(self, request: web.Request) -> web.Response:
        """Resumes generation after a pause."""
        await _finished(self._engine.resume(), "continuing")
        return json_response({"status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Drops the cache of samples that have ended; 400 while samples run or wait."""
        if not await _finished(self._engine.flush_cache(), "flushing"):
            return error_response(400, "samples are running: abort, retract or wait for them before flushing")
        return json_response({"success": True})

    async def release(self, request: web.Request) -> web.Response:
        """Releases the memory of `{"tags": ["weights", "kv_cache"]}`; 400 while samples run or wait."""
        await _finished(self._engine.release(_tags(await read_body(request))), "releasing memory")
        return json_response({"success": True})

    async def restore(self, request: web.Request) -> web.Response:
        """Allocates the memory of the given tags again; the next update brings the weights."""
        await _finished(self._engine.restore(_tags(await read_body(request))), "allocating memory")
        return json_response({"success": True})

    async def health(self, request: web.Request) -> web.Response:
        """Answers 200 while the engine works, and 503 with the reason after it failed; generates nothing."""
        if self._engine.failure is None:
            return json_response({"status": "ok"})
        return error_response(503, f"the engine failed: {self._engine.failure}")

    async def model_info(self, request: web.Request) -> web.Response:
        """Describes the model and the engine's limits."""
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
                "channel": CHANNEL_PATH,
            }
        )

    async def update_from_tensor(self, request: web.Request) -> web.Response:
        """Adopts weights that are read as `load_format` says (rlrun.runner.weights.carriers); pickled tensors
        are not accepted.
        """
        return await self._update(await read_body(request))

    async def update_from_disk(self, request: web.Request) -> web.Response:
        """Reads weights from a Hugging Face folder; keeps the old ones if they do not fit the model.

        With `deltas`, applies those afterwards, and to the weights that it has if there is no folder.
        """
        return await self._update(await read_body(request) | {"load_format": "disk"})

    def close(self) -> None:
        """Lets go of what is kept from one update to the next, when the engine has stopped."""
        for reader in self._readers.values():
            reader.close()

    async def _update(self, body: dict[str, Any]) -> web.Response:
        load_format = body.get("load_format")
        reader = self._readers.get(load_format) if isinstance(load_format, str) else None
        if reader is None:
            known = " or ".join(f'"{name}"' for name in self._readers)
            raise ValueError(f"load_format must be {known}: this engine does not unpickle tensors")
        # An update goes on, and others wait for it, where its client has gone: a thread that reads weights
        # cannot be interrupted.
        await asyncio.shield(asyncio.create_task(self._load(reader, body)))
        return json_response(
            {"success": True, "message": "weights updated", "weight_version": str(self._engine.version)}
        )

    async def _load(self, reader: Reader, body: dict[str, Any]) -> None:
        async with self._updating:
            new = reader.read({"weight_version": self._engine.version} | body)
            await _finished(await asyncio.to_thread(self._engine.load, new), "updating weights")


def _tags(body: dict[str, Any]) -> list[MemoryPart]:
    tags = body.get("tags") or list(get_args(MemoryPart))
    if not isinstance(tags, list) or not all(tag in get_args(MemoryPart) for tag in tags):
        raise ValueError(f"tags {tags}: supported are {', '.join(get_args(MemoryPart))}")
    return tags


async def _finished(future: "Future[T]", activity: str) -> T:
    """Waits for a call in the engine's thread; answers 503 if the current step takes too long."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), CONTROL_SECONDS)
    except TimeoutError:
        raise web.HTTPServiceUnavailable(
            text=f"{activity}: the engine did not finish its step within {CONTROL_SECONDS:g} s"
        ) from None
