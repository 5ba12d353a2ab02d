"""`/v1/chat/completions`, as OpenAI, and every server that is compatible with it, has it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.plugins.rollouts.agent.answer import Answer, Event
from rlrun.plugins.rollouts.agent.request import (
    AgentRequest,
    RefusedRequest,
    decided_by_job,
    read_limit,
    read_list,
    read_object,
    read_stops,
)
from rlrun.plugins.rollouts.agent.wires.wire import openai_error


class ChatCompletions:
    """Chat completions, in one piece or as a stream of one chunk per part."""

    path = "/v1/chat/completions"

    def read(self, body: Any) -> AgentRequest:
        """Returns what a request asks for."""
        body = read_object(body)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RefusedRequest("messages must be a list of at least one message")
        if not all(isinstance(message, Mapping) for message in messages):
            raise RefusedRequest("a message must be an object with role and content")
        tools = body.get("tools") if body.get("tool_choice") != "none" else None
        options = body.get("stream_options") or {}
        return AgentRequest(
            [_with_system_role(message) for message in messages],
            read_list(tools or [], "tools"),
            read_limit(body.get("max_completion_tokens") or body.get("max_tokens"), "max_tokens"),
            read_stops(body.get("stop")),
            str(body.get("model") or "policy"),
            bool(body.get("stream")),
            isinstance(options, Mapping) and bool(options.get("include_usage")),
            decided=decided_by_job(body),
        )

    def whole(self, answer: Answer, request: AgentRequest) -> Mapping[str, Any]:
        """Returns the body of an answer."""
        choice = {"index": 0, "message": answer.message, "finish_reason": _finish(answer)}
        return _frame(answer, "chat.completion", [choice]) | {"usage": _usage(answer)}

    def events(self, answer: Answer, request: AgentRequest) -> Iterator[Event]:
        """Yields one chunk with the whole answer, one with the reason of its end, and the usage if asked."""
        delta = {**answer.message}
        if answer.calls:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(answer.calls)]
        for choices in (
            [{"index": 0, "delta": delta, "finish_reason": None}],
            [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}],
        ):
            yield Event(_frame(answer, "chat.completion.chunk", choices))
        if request.reports_usage:
            yield Event(_frame(answer, "chat.completion.chunk", []) | {"usage": _usage(answer)})
        yield Event("[DONE]")

    def error(self, message: str, code: str) -> Mapping[str, Any]:
        """Returns the body of an error."""
        return openai_error(message, code, code)

    def error_event(self, message: str, code: str) -> Event:
        """Returns the event of an error after a stream has begun."""
        return Event(self.error(message, code))


def chunks_of(completion: Mapping[str, Any]) -> Iterator[Event]:
    """Yields a chat completion as the chunks of a stream: the whole message, its end, and the usage."""
    frame = {**completion, "object": "chat.completion.chunk"}
    usage = frame.pop("usage", None)
    for choice in completion["choices"]:
        delta = {name: value for name, value in choice["message"].items() if value is not None}
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        for part in (
            {"delta": delta, "finish_reason": None},
            {"delta": {}, "finish_reason": choice["finish_reason"]},
        ):
            yield Event({**frame, "choices": [{"index": choice.get("index", 0), **part}]})
    yield Event({**frame, "choices": [], "usage": usage})
    yield Event("[DONE]")


def _with_system_role(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Templates know `system`, which newer clients call `developer`."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else answer.finish


def _frame(answer: Answer, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.name}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    }


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
