"""Bodies of requests and answers, all of them JSON."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.Response]]


@web.middleware
async def user_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """What the client can mend is a 400 with the message."""
    try:
        return await handler(request)
    except ValueError as error:
        return error_response(400, str(error))


async def read_body(request: web.Request) -> dict[str, Any]:
    """The object that a request holds, empty where it holds nothing. Raises ValueError."""
    raw = await request.read()
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


def json_response(payload: Any, status: int = 200) -> web.Response:
    """An answer; arrays become lists."""
    body = orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY)
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(status: int, message: str) -> web.Response:
    """What went wrong, as OpenAI's API has it."""
    return json_response({"error": {"message": message}}, status)
