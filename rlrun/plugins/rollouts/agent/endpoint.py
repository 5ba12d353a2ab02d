"""Serves the policy to agents at one address, in the formats that they know; each execution has its own key.

request ──▶ execution of the key ──▶ wire.read ──▶ Record.ask ──▶ session.generate ──▶ Record.answer ─┐
response ◀── deliver, by the wire, in one piece or as a stream ◀──────────────────────────────────────┘
"""

import asyncio
import hashlib
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rlrun.models.json_files import parse_json
from rlrun.plugins.engines import NO_ANSWER, Address, EngineRefusal
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.http_guard import Guard, bearer
from rlrun.plugins.rollouts.agent.answer import Answer
from rlrun.plugins.rollouts.agent.delivery import (
    Exchange,
    Refused,
    deliver,
    error_response,
    json_response,
    stream_response,
)
from rlrun.plugins.rollouts.agent.history import Key
from rlrun.plugins.rollouts.agent.message_images import MessageImages, images_of
from rlrun.plugins.rollouts.agent.messages import answer_message, for_template
from rlrun.plugins.rollouts.agent.own_trajectories import TrajectoryError, read_trajectories
from rlrun.plugins.rollouts.agent.record import Conversation, Record
from rlrun.plugins.rollouts.agent.request import AgentRequest, RefusedRequest, Settings
from rlrun.plugins.rollouts.agent.turn_deadline import TurnDeadline
from rlrun.plugins.rollouts.agent.wires.anthropic_messages import AnthropicMessages
from rlrun.plugins.rollouts.agent.wires.chat_completions import chunks_of
from rlrun.plugins.rollouts.agent.wires.table import WIRES, read_request
from rlrun.plugins.rollouts.agent.wires.wire import Wire
from rlrun.plugins.rollouts.conversation import TurnByTurn
from rlrun.plugins.rollouts.tool_calls import Syntax
from rlrun.plugins.session import Session
from rlrun.plugins.types import Message

if TYPE_CHECKING:
    from aiohttp import web

MAX_BODY = 64 * 2**20
_ENGINES = "/engines"
"""The path before the names of `[[engines]]`."""
_CLAUDE = AnthropicMessages()
_WRONG = (ValueError, KeyError, TypeError, AttributeError)
"""What reading a body of the wrong form raises."""


@dataclass(slots=True)
class Served:
    """The endpoint's state of one execution."""

    session: Session
    record: Record
    turns: TurnDeadline
    syntax: Syntax
    other_settings: Settings = "refuse"
    """What becomes of a request that sets what the job decides."""
    max_turns: int = sys.maxsize
    """The number of answers that the agent may ask for."""
    engines: Sequence[str] = ()
    """The names of `[[engines]]` that the agent may ask."""
    questions: int = 0
    """Requests that the policy answers or has answered."""
    out_of_turns: bool = False
    """Whether the agent asked for more answers than `max_turns`."""
    answers: int = 0
    sampled_tokens: int = 0
    """Tokens that the policy generated, whether or not they are trained."""
    error: Exception | None = None
    """The last error of an engine. It fails the execution even if the agent handles it."""
    aborted: bool = False
    images: MessageImages = field(default_factory=MessageImages)
    own: list[Trajectory] = field(default_factory=list)
    """The trajectories that the agent assembled itself, if any."""
    begun: int = 0
    """The version of the weights when the execution began, or an older one that made a token since."""
    exchanges: list[Exchange] = field(default_factory=list)
    """The questions whose answers are not delivered yet."""
    running: "set[asyncio.Task[Any]]" = field(default_factory=set)
    """The requests and answers in progress."""

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Notes that the current task answers a request, which is cancelled when the execution ends."""
        task = asyncio.current_task()
        assert task is not None, "a request runs in a task"
        self.running.add(task)
        try:
            yield
        finally:
            self.running.discard(task)


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
        for wire in WIRES:
            app.router.add_post(wire.path, partial(self._answer, wire))
        app.router.add_post(f"{_CLAUDE.path}/count_tokens", self._count)
        app.router.add_post(f"{_ENGINES}/{{name}}/v1/chat/completions", self._ask_engine)
        app.router.add_post("/v1/trajectories", self._take_trajectories)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/", _alive)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self._guard.address, 0)
        await site.start()
        self._runner = runner
        host, port = runner.addresses[0][:2]
        self._url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    def _asked_by(self, request: "web.Request") -> Served:
        """Returns the execution that a request's key belongs to. Raises Refused for an unknown key."""
        key = bearer(request.headers) or request.headers.get("x-api-key", "")
        served = self._served.get(_digest(key))
        if served is None:
            raise Refused(401, "this key does not belong to a running execution", "invalid_api_key")
        return served

    async def _models(self, request: "web.Request") -> "web.Response":
        try:
            self._asked_by(request)
        except Refused as refused:
            return error_response(WIRES[0], refused)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "rlrun"}
        return json_response({"object": "list", "data": [model]})

    async def _count(self, request: "web.Request") -> "web.Response":
        """Says how many tokens a conversation has, without an answer."""
        try:
            served = self._asked_by(request)
            asked, messages = await _read(served, _CLAUDE, request)
            tokens = _render(served.session, messages, asked)
        except Refused as refused:
            return error_response(_CLAUDE, refused)
        return json_response({"input_tokens": tokens})

    async def _answer(self, wire: Wire, request: "web.Request") -> "web.StreamResponse":
        try:
            served = self._asked_by(request)
            with served.in_progress():
                asked, messages = await _read(served, wire, request)
                exchange = _exchange(served, request, asked, messages)
                response = await deliver(exchange, wire, asked)
                if exchange.delivered:
                    served.exchanges.remove(exchange)
                return response
        except Refused as refused:
            return error_response(wire, refused)

    async def _take_trajectories(self, request: "web.Request") -> "web.Response":
        """Keeps trajectories that the agent assembled itself, instead of those that were recorded."""
        try:
            served = self._asked_by(request)
            try:
                body = parse_json(await request.read())
                served.own = read_trajectories(body, served.session, served.begun)
            except _WRONG as error:
                raise _as_refused(error) from error
        except Refused as refused:
            return error_response(WIRES[0], refused)
        return json_response({"trajectories": len(served.own)})

    async def _ask_engine(self, request: "web.Request") -> "web.Response":
        """Passes a request on to a model of `[[engines]]` that the execution may ask."""
        try:
            served = self._asked_by(request)
            with served.in_progress():
                return await _engines_answer(served, request)
        except Refused as refused:
            return error_response(WIRES[0], refused)


def relayed_engines(url: str, key: str, names: Sequence[str]) -> dict[str, Address]:
    """Returns where an execution asks models of `[[engines]]`: at the endpoint of this URL, with its key."""
    return {name: Address(f"{url.removesuffix('/v1')}{_ENGINES}/{name}", key, name) for name in names}


async def _engines_answer(served: Served, request: "web.Request") -> "web.Response":
    """Answers with the answer of an engine, which has no part in the execution's samples. Raises Refused.

    Engines answer in one piece, which a stream then has at once.
    """
    name = request.match_info["name"]
    if name not in served.engines:
        known = ", ".join(served.engines) or "none"
        raise Refused(404, f"rollout.function.engines of this job is {known}, not {name}", "not_found")
    try:
        body = parse_json(await request.read())
        asked = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
        with served.turns.answering():
            answer = await served.session.engine(name).complete(asked)
        return stream_response(chunks_of(answer)) if body.get("stream") else json_response(answer)
    except EngineRefusal as error:
        raise Refused(error.status, str(error), "invalid_request_error") from error
    except _WRONG as error:
        raise _as_refused(error) from error
    except Exception as error:  # a boundary, as in `_generate`
        served.error = error
        raise Refused(NO_ANSWER, f"{type(error).__name__}: {error}", "engine_error") from error


async def _alive(request: "web.Request") -> "web.Response":
    """Answers clients that look whether there is a server (`HEAD /`)."""
    return json_response({})


async def _read(served: Served, wire: Wire, request: "web.Request") -> tuple[AgentRequest, list[Message]]:
    """Returns what a request asks for, and its messages as the policy is to see them."""
    try:
        asked = read_request(wire, parse_json(await request.read()))
        if served.other_settings == "refuse":
            asked.check_decided(served.session.sampling)
        messages = await asyncio.to_thread(served.images.read, asked.messages)
        return asked, served.record.history.prepared(messages)
    except _WRONG as error:
        raise _as_refused(error) from error


def _as_refused(error: Exception) -> Refused:
    named = (
        str(error)
        if isinstance(error, RefusedRequest | TrajectoryError)
        else f"{type(error).__name__}: {error}"
    )
    return Refused(400, named, "invalid_request_error")


def _render(session: Session, messages: list[Message], asked: AgentRequest) -> int:
    try:
        images = session.chat.place(images_of(messages))
        return len(session.chat.render(list(map(for_template, messages)), asked.tools, images))
    except _WRONG as error:
        raise _as_refused(error) from error


def _exchange(
    served: Served, request: "web.Request", asked: AgentRequest, messages: list[Message]
) -> Exchange:
    """Returns the exchange of a request: that of an equal request whose connection was lost, or a new one."""
    try:
        if lost := [known for known in served.exchanges if known.is_lost]:
            question = _question(asked, tuple(map(served.record.history.key, messages)))
            for known in lost:
                if known.question == question:
                    known.request = request
                    return known
        _check_turns(served)
        if asked.tokens:
            conversation = served.record.ask_tokens(asked.tokens, asked.model)
        else:
            conversation = served.record.ask(messages, asked.tools, asked.model)
    except _WRONG as error:
        raise _as_refused(error) from error
    served.questions += 1
    answer = asyncio.create_task(_generate(served, asked, conversation))
    served.running.add(answer)
    answer.add_done_callback(partial(_ended, served))
    exchange = Exchange(_question(asked, () if asked.tokens else conversation.asking), answer, request)
    served.exchanges.append(exchange)
    return exchange


def _check_turns(served: Served) -> None:
    """Raises Refused if the execution has had all its answers."""
    if served.questions >= served.max_turns:
        served.out_of_turns = True
        message = f"this execution has had its {served.max_turns} answers (rollout.function.max_turns)"
        raise Refused(400, message, "max_turns_exceeded")


def _question(asked: AgentRequest, keys: tuple[Key, ...]) -> tuple[object, ...]:
    """Returns what equal requests have in common; `keys` are those of the messages."""
    return asked.model, keys, asked.tools, asked.tokens


def _ended(served: Served, answer: "asyncio.Task[Answer]") -> None:
    served.running.discard(answer)
    if not answer.cancelled():
        answer.exception()  # read here, since the request may be gone


async def _generate(served: Served, asked: AgentRequest, conversation: Conversation) -> Answer:
    """Lets the policy answer, and records it. Raises Refused if it cannot."""
    session = served.session
    tokens = conversation.trajectory.tokens()
    response_room = TurnByTurn(session, conversation.trajectory).room
    room = max(0, min(response_room, session.max_turn_tokens))
    try:
        sampling = asked.sampling(session.sampling, room)
        with served.turns.answering():
            generation = await session.generate(tokens, sampling, conversation.images)
    except Exception as error:  # a boundary: the agent gets a 503, and `Agent.run` raises the error
        served.error = error
        raise Refused(503, f"{type(error).__name__}: {error}", "engine_error") from error
    served.answers += 1
    served.sampled_tokens += len(generation.tokens)
    served.aborted |= generation.finish == "abort"
    served.begun = min([served.begun, *(span.version for span in generation.versions)])
    syntax = served.syntax if asked.tools else None
    message = answer_message(_text(session, generation), syntax, served.answers, asked.tools)
    served.record.answer(conversation, asked.as_ended(generation, room), message)
    if generation.finish == "length" and not len(generation.tokens):
        raise Refused(
            400,
            f"prompt is too long: {len(tokens)} tokens > {len(tokens) + response_room} maximum",
            "context_length_exceeded",
        )
    return Answer(
        message,
        "length" if generation.finish == "length" else "stop",
        prompt_tokens=len(tokens),
        generation=generation,
        name=f"{session.id}-{served.answers}",
        number=served.answers,
        model=asked.model,
    )


def _text(session: Session, generation: Generation) -> str:
    """Returns the text of an answer without its end token."""
    tokens = generation.tokens
    if len(tokens) and tokens[-1] in session.chat.eos_token_ids:
        tokens = tokens[:-1]
    [text] = session.chat.decode_batch([tokens], special=True)
    return text


async def _guarded(
    guard: Guard, request: "web.Request", handler: "Callable[[web.Request], Awaitable[web.StreamResponse]]"
) -> "web.StreamResponse":
    refusal = guard.refusal(request.method, request.path, request.headers)
    if refusal is not None:
        return error_response(WIRES[0], Refused(refusal.status, refusal.message, "invalid_request_error"))
    return await handler(request)


def _digest(key: str) -> bytes:
    """Returns a key's hash. Executions are looked up by hash, so timing reveals nothing about a key."""
    return hashlib.sha256(key.encode(errors="replace")).digest()
