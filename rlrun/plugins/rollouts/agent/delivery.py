"""Delivers answers over HTTP, in one piece or as a stream, and knows which were not delivered.

A client whose connection is cut asks for the same answer again. It gets the answer that was meant for it: a
second one would be a twin, of which the agent has seen only one.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlrun.plugins.rollouts.agent.answer import Answer, Event
from rlrun.plugins.rollouts.agent.request import AgentRequest
from rlrun.plugins.rollouts.agent.wires.wire import Wire

if TYPE_CHECKING:
    from aiohttp import web

_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
PING_SECONDS = 10.0
"""How often a stream without an answer yet shows that it is alive; clients give up after some minutes."""


class Refused(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(slots=True, eq=False)
class Exchange:
    """A question to the policy, and the requests that brought it: one, and others after lost connections."""

    question: tuple[object, ...]
    """What equal requests have in common."""
    answer: "asyncio.Task[Answer]"
    request: "web.Request"
    """The newest one."""
    delivered: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether the newest request's connection ended before its answer was delivered, if there is one."""
        failed = self.answer.done() and (self.answer.cancelled() or self.answer.exception() is not None)
        return not self.delivered and not failed and is_closed(self.request)


def is_closed(request: "web.Request") -> bool:
    """Returns whether a request's connection has ended."""
    return request.transport is None or request.transport.is_closing()


async def deliver(exchange: Exchange, wire: Wire, asked: AgentRequest) -> "web.StreamResponse":
    """Answers the newest request of an exchange. Raises Refused, before a stream begins, for an error."""
    from aiohttp import web

    request = exchange.request
    response: web.StreamResponse = web.StreamResponse(headers=_STREAM)
    try:
        if asked.stream:
            await _write_events(response, exchange, wire, asked)
        else:
            answer = await asyncio.shield(exchange.answer)
            response = json_response(wire.whole(answer, asked))
            await response.prepare(request)
        await response.write_eof()
    except ConnectionError:  # the client is gone, and may ask again
        return response
    exchange.delivered = not is_closed(request)
    return response


async def _write_events(
    response: "web.StreamResponse", exchange: Exchange, wire: Wire, asked: AgentRequest
) -> None:
    """Writes an answer as events. An answer that takes long is announced by comments, which clients skip."""
    request = exchange.request
    while not (await asyncio.wait([exchange.answer], timeout=PING_SECONDS))[0]:
        await response.prepare(request)  # does nothing the second time
        await response.write(b": waiting\n\n")
    try:
        answer = exchange.answer.result()
    except Refused as refused:
        if not response.prepared:
            raise
        await response.write(_bytes(wire.error_event(refused.message, refused.code)))
    else:
        await response.prepare(request)
        await response.write(b"".join(map(_bytes, wire.events(answer, asked))))


def stream_response(events: Iterable[Event]) -> "web.Response":
    """Returns a response with events that are all known."""
    from aiohttp import web

    return web.Response(body=b"".join(map(_bytes, events)), headers=_STREAM)


def _bytes(event: Event) -> bytes:
    data = event.data if isinstance(event.data, str) else json.dumps(event.data)
    name = f"event: {event.name}\n" if event.name else ""
    return f"{name}data: {data}\n\n".encode()


def error_response(wire: Wire, refused: Refused) -> "web.Response":
    """Returns an error in the wire's form."""
    return json_response(wire.error(refused.message, refused.code), refused.status)


def json_response(body: Mapping[str, Any], status: int = 200) -> "web.Response":
    """Returns a response with a JSON object."""
    from aiohttp import web

    return web.json_response(body, status=status)
