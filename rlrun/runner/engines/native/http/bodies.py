"""Requests of our own engines' servers: who may send them, and their bodies, all of them JSON."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from rlrun.plugins.http_guard import Guard

Handler = Callable[[web.Request], Awaitable[web.Response]]
GENERATE_BYTES = 1 << 30
"""Longest body of a call that generates: a batch of prompts in deterministic mode is one call."""
CONTROL_BYTES = 16 << 20
"""Longest body of every other call: a manifest names each tensor."""


def engine_guard(host: str, key: str | None) -> Middleware:
    """Refuses whoever does not know the key, but for `/health`, which tells nothing else."""
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
async def user_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """What the client can mend is a 400 with the message."""
    try:
        return await handler(request)
    except ValueError as error:
        return error_response(400, str(error))


async def read_body(request: web.Request, most: int = CONTROL_BYTES) -> dict[str, Any]:
    """The object that a request holds, empty where it holds nothing. Raises ValueError; HTTP 413 where it is
    longer than `most` bytes.
    """
    raw = await _read(request, most)
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


async def _read(request: web.Request, most: int) -> bytes:
    """The body, unpacked where it is compressed."""
    parts: list[bytes] = []
    size = request.content_length or 0
    if size <= most:
        size = 0
        async for part in request.content.iter_any():
            size += len(part)
            if size > most:
                break
            parts.append(part)
    if size > most:
        raise web.HTTPRequestEntityTooLarge(most, size, text=f"the body is longer than {most} bytes")
    return b"".join(parts)


def json_response(payload: Any, status: int = 200) -> web.Response:
    """An answer; arrays become lists."""
    body = orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY)
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(status: int, message: str) -> web.Response:
    """What went wrong, as OpenAI's API has it."""
    return json_response({"error": {"message": message}}, status)
