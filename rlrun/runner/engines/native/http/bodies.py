"""Requests to rlrun's own engine servers: who may send them, and their JSON bodies."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from rlrun.plugins.http_guard import Guard

_log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.Response]]
GENERATE_BYTES = 1 << 30
"""Longest body of a call that generates; in deterministic mode one call has a whole batch of prompts."""
CONTROL_BYTES = 16 << 20
"""Longest body of all other calls; a manifest of weights names every tensor."""


class EngineFailure(Exception):
    """The engine failed, so that no request can be served; the message says why."""


def engine_guard(host: str, key: str | None) -> Middleware:
    """Returns a middleware that refuses requests without the key; `/health`, which reveals nothing, needs
    none.
    """
    guard = Guard(host, key, frozenset({"/health"}))

    @web.middleware
    async def guarded(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        refusal = guard.refusal(request.method, request.path, request.headers)
        if refusal is not None:
            return error_response(refusal.status, refusal.message)
        return await handler(request)

    return guarded


@web.middleware
async def answer_user_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answers a ValueError, which the client can correct, with status 400 and its message, and every other
    error with status 500 and its message.
    """
    try:
        return await handler(request)
    except ValueError as error:
        return error_response(400, str(error))
    except EngineFailure as error:
        return error_response(500, str(error))
    except web.HTTPException:
        raise
    except Exception as error:  # a bug: without its name, the job could only report that something failed
        _log.exception("a request failed")
        return error_response(500, f"{type(error).__name__}: {error}")


async def read_body(request: web.Request, most: int = CONTROL_BYTES) -> dict[str, Any]:
    """Returns the JSON object of a request; an empty body counts as an empty object.

    Raises ValueError for anything but a JSON object, and answers 413 to a body of more than `most` bytes.
    """
    return parse_body(await _read(request, most))


def parse_body(raw: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body. Raises ValueError for anything else."""
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


async def _read(request: web.Request, most: int) -> bytes:
    """Reads the body, decompressed; stops as soon as it is longer than `most` bytes."""
    chunks: list[bytes] = []
    size = request.content_length or 0
    if size <= most:
        size = 0
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > most:
                break
            chunks.append(chunk)
    if size > most:
        raise web.HTTPRequestEntityTooLarge(most, size, text=f"the body is longer than {most} bytes")
    return b"".join(chunks)


def json_response(payload: Any, status: int = 200) -> web.Response:
    """Returns an answer with a JSON body; numpy arrays become lists."""
    return raw_response(json_body(payload), status)


def error_response(status: int, message: str) -> web.Response:
    """Returns an error in the format of OpenAI's API."""
    return raw_response(error_body(message), status)


def raw_response(body: bytes, status: int = 200) -> web.Response:
    """Returns an answer with a body that is JSON already."""
    return web.Response(body=body, status=status, content_type="application/json")


def json_body(payload: Any) -> bytes:
    """Returns the JSON of a value; numpy arrays become lists."""
    return orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY)


def error_body(message: str) -> bytes:
    """Returns an error in the format of OpenAI's API."""
    return json_body({"error": {"message": message}})
