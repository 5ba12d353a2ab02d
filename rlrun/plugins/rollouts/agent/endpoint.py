"""Serves the policy to agents at `/v1/chat/completions`, at one address; each execution has its own key.

request ──▶ execution of the key ──▶ Record.ask ──▶ session.generate ──▶ Record.answer ──▶ response
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rlrun.models.json_files import parse_json
from rlrun.plugins.generation import Generation
from rlrun.plugins.http_guard import Guard, bearer
from rlrun.plugins.rollouts.agent.chat_request import ChatRequest
from rlrun.plugins.rollouts.agent.message_images import MessageImages
from rlrun.plugins.rollouts.agent.messages import answer_message
from rlrun.plugins.rollouts.agent.record import Conversation, Record
from rlrun.plugins.rollouts.tool_calls import Syntax
from rlrun.plugins.session import Session

if TYPE_CHECKING:
    from aiohttp import web

MAX_BODY = 64 * 2**20
_FINISH = {"stop": "stop", "length": "length", "abort": "stop"}


@dataclass(slots=True)
class Served:
    """The endpoint's state of one execution."""

    session: Session
    record: Record
    syntax: Syntax
    answers: int = 0
    error: Exception | None = None
    """The last error of an engine. It fails the execution even if the agent handles it."""
    aborted: bool = False
    images: MessageImages = field(default_factory=MessageImages)
    running: "set[asyncio.Task[Any]]" = field(default_factory=set)
    """The requests in progress."""


class Endpoint:
    """A server on a free port of this host, shared by all executions."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        """`address`: the only IP address that the server listens at."""
        self._guard = Guard(address)
        self._served: dict[bytes, Served] = {}
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()
        self._url = ""

    async def url(self) -> str:
        """Returns the server's address. The first call starts the server."""
        async with self._starting:
            if self._runner is None:
                await self._start()
        return self._url

    def open(self, served: Served) -> str:
        """Returns a new API key. Requests with this key belong to the given execution."""
        key = secrets.token_urlsafe(24)
        self._served[_digest(key)] = served
        return key

    def close_key(self, key: str) -> None:
        """Removes a key and cancels the requests in progress that use it."""
        for request in self._served.pop(_digest(key)).running:
            request.cancel()

    async def close(self) -> None:
        """Stops the server."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _start(self) -> None:
        from aiohttp import web

        app = web.Application(
            client_max_size=MAX_BODY, middlewares=[web.middleware(partial(_guarded, self._guard))]
        )
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self._guard.address, 0)
        await site.start()
        self._runner = runner
        host, port = runner.addresses[0][:2]
        self._url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    async def _models(self, request: "web.Request") -> "web.Response":
        if self._asked_by(request) is None:
            return _unknown_key()
        return _json({"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "rlrun"}]})

    def _asked_by(self, request: "web.Request") -> Served | None:
        """Returns the execution that a request's key belongs to; None for an unknown key."""
        return self._served.get(_digest(bearer(request.headers)))

    async def _complete(self, request: "web.Request") -> "web.Response":
        served = self._asked_by(request)
        if served is None:
            return _unknown_key()
        try:
            chat_request = ChatRequest.of(parse_json(await request.read()))
            messages = await asyncio.to_thread(served.images.read, chat_request.messages)
            conversation = served.record.ask(messages, chat_request.tools)
        except (ValueError, KeyError, TypeError) as error:
            return _refused(400, f"{type(error).__name__}: {error}", "invalid_request_error")
        task = asyncio.current_task()
        assert task is not None, "a request runs in a task"
        served.running.add(task)
        try:
            return await _answer(served, chat_request, conversation)
        finally:
            served.running.discard(task)


async def _answer(served: Served, chat_request: ChatRequest, conversation: Conversation) -> "web.Response":
    session = served.session
    tokens = conversation.trajectory.tokens()
    token_limit = _token_limit(session, conversation)
    room = max(0, min(token_limit - len(tokens), session.max_turn_tokens))
    try:
        sampling = chat_request.sampling(session.sampling, room)
        generation = await session.generate(tokens, sampling, conversation.images)
    except Exception as error:  # a boundary: the agent gets a 503, and `Agent.run` raises the error
        served.error = error
        return _refused(503, f"{type(error).__name__}: {error}", "engine_error")
    served.answers += 1
    served.aborted |= generation.finish == "abort"
    message = answer_message(
        _text(session, generation), served.syntax if chat_request.tools else None, served.answers
    )
    served.record.answer(conversation, chat_request.as_ended(generation, room), message)
    if generation.finish == "length" and not len(generation.tokens):
        reason = f"the conversation has {len(tokens)} tokens, at most {token_limit} are allowed"
        return _refused(400, reason, "context_length_exceeded")
    return _json(_completion(message, generation, len(tokens), f"chatcmpl-{session.id}-{served.answers}"))


def _token_limit(session: Session, conversation: Conversation) -> int:
    """Returns the number of tokens that a conversation may have.

    All its turns together are one response, so `max_new_tokens` limits their sum.
    """
    longest_response = len(conversation.trajectory.prompt) + session.sampling.max_new_tokens
    return min(session.max_tokens, longest_response)


def _text(session: Session, generation: Generation) -> str:
    """Returns the text of an answer without its end token."""
    tokens = generation.tokens
    if len(tokens) and tokens[-1] in session.chat.eos_token_ids:
        tokens = tokens[:-1]
    [text] = session.chat.decode_batch([tokens], special=True)
    return text


def _completion(
    message: Mapping[str, Any], generation: Generation, prompt_tokens: int, name: str
) -> dict[str, Any]:
    finish = "tool_calls" if message.get("tool_calls") else _FINISH[generation.finish]
    return {
        "id": name,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(generation.tokens),
            "total_tokens": prompt_tokens + len(generation.tokens),
        },
    }


async def _guarded(
    guard: Guard, request: "web.Request", handler: "Callable[[web.Request], Awaitable[web.StreamResponse]]"
) -> "web.StreamResponse":
    refusal = guard.refusal(request.method, request.path, request.headers)
    if refusal is not None:
        return _refused(refusal.status, refusal.message, "invalid_request_error")
    return await handler(request)


def _digest(key: str) -> bytes:
    """Returns a key's hash. Executions are looked up by hash, so timing reveals nothing about a key."""
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _unknown_key() -> "web.Response":
    return _refused(401, "this key does not belong to a running execution", "invalid_api_key")


def _refused(status: int, message: str, code: str) -> "web.Response":
    return _json({"error": {"message": message, "type": code, "code": code}}, status)


def _json(body: Mapping[str, Any], status: int = 200) -> "web.Response":
    from aiohttp import web

    return web.json_response(body, status=status)
