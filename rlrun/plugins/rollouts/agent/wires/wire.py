"""What a wire is: a path, a reading of requests, and a writing of answers and refusals."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from rlrun.plugins.rollouts.agent.answer import Answer, Event
from rlrun.plugins.rollouts.agent.request import AgentRequest


class Wire(Protocol):
    """One format of requests and answers."""

    path: str

    def read(self, body: Any) -> AgentRequest:
        """Returns what a request asks for. Raises RefusedRequest for a body that cannot be served, and what
        reading a part that is missing or of another type raises (`read_request` turns it into this).
        """

    def whole(self, answer: Answer, request: AgentRequest) -> Mapping[str, Any]:
        """Returns the body of an answer."""

    def events(self, answer: Answer, request: AgentRequest) -> Iterator[Event]:
        """Yields the events of an answer that is streamed."""

    def error(self, message: str, code: str) -> Mapping[str, Any]:
        """Returns the body of an error."""

    def error_event(self, message: str, code: str) -> Event:
        """Returns the event of an error after a stream has begun."""


def openai_error(message: str, code: str, kind: str) -> dict[str, Any]:
    """Returns the body of an error as OpenAI's wires have it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
