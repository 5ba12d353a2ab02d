"""`/v1/responses`, as Codex and OpenAI's agents ask, with the whole history in each request.

An answer is a list of items: thoughts, a message, calls. Adjacent items of an assistant are one message.
"""

import json
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
)
from rlrun.plugins.rollouts.agent.wires.wire import openai_error
from rlrun.plugins.types import Message

_NOT_KEPT = ("previous_response_id", "conversation", "background", "prompt")
_CUSTOM_KIND = "custom"
_CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The parameters of a tool of type custom, which takes free text."""


class OpenAIResponses:
    """OpenAI's responses. Nothing is stored: `previous_response_id` is refused."""

    path = "/v1/responses"

    def read(self, body: Any) -> AgentRequest:
        """Returns what a request asks for."""
        body = read_object(body)
        for name in _NOT_KEPT:
            if body.get(name):
                raise RefusedRequest(f"{name} is not offered: send the whole history as input")
        given = body.get("input")
        if isinstance(given, str):
            given = [{"role": "user", "content": given}]
        items = read_list(given, "input")
        messages = list(_read_items(items))
        if body.get("instructions"):
            messages.insert(0, {"role": "system", "content": str(body["instructions"])})
        if not messages:
            raise RefusedRequest("input must be a text, or a list of at least one item")
        tools = [] if body.get("tool_choice") == "none" else read_list(body.get("tools") or [], "tools")
        functions = [function for tool in tools for function in _read_tool(tool)]
        return AgentRequest(
            messages,
            [function for function, _ in functions],
            read_limit(body.get("max_output_tokens"), "max_output_tokens"),
            model=str(body.get("model") or "policy"),
            stream=bool(body.get("stream")),
            kinds={function["function"]["name"]: kind for function, kind in functions if kind},
            decided=decided_by_job(body) | _format(body),
        )

    def whole(self, answer: Answer, request: AgentRequest) -> Mapping[str, Any]:
        """Returns the body of an answer."""
        cut = answer.finish == "length"
        details = {"reason": "max_output_tokens"} if cut else None
        usage = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        }
        status = "incomplete" if cut else "completed"
        return _frame(answer, status) | {
            "output": list(_items(answer, request)),
            "incomplete_details": details,
            "usage": usage,
        }

    def events(self, answer: Answer, request: AgentRequest) -> Iterator[Event]:
        """Yields the events that OpenAI's SDKs and Codex put together."""
        return _numbered(self._events(answer, request))

    def _events(self, answer: Answer, request: AgentRequest) -> Iterator[dict[str, Any]]:
        yield {"type": "response.created", "response": _frame(answer, "in_progress")}
        for index, item in enumerate(_items(answer, request)):
            place = {"output_index": index, "item_id": item["id"]}
            yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
            if item["type"] == "message":
                yield from _text_events(place, item["content"][0])
            if item["type"] == "function_call":
                changed = "response.function_call_arguments"
                yield {"type": f"{changed}.delta", **place, "delta": item["arguments"]}
                whole = {"arguments": item["arguments"], "name": item["name"]}
                yield {"type": f"{changed}.done", **place, **whole}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        ended = self.whole(answer, request)
        yield {"type": f"response.{ended['status']}", "response": ended}

    def error(self, message: str, code: str) -> Mapping[str, Any]:
        """Returns the body of an error."""
        return openai_error(message, code, "invalid_request_error")

    def error_event(self, message: str, code: str) -> Event:
        """Returns the event of an error after a stream has begun."""
        failed = {"status": "failed", "error": {"code": code, "message": message}, "output": []}
        return Event({"type": "response.failed", "response": failed}, "response.failed")


def _numbered(events: Iterator[dict[str, Any]]) -> Iterator[Event]:
    for number, event in enumerate(events):
        yield Event({**event, "sequence_number": number}, event["type"])


def _frame(answer: Answer, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.name}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "model": answer.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": None,
        "top_p": None,
    }


def _items(answer: Answer, request: AgentRequest) -> Iterator[dict[str, Any]]:
    """Yields the items of an answer: thoughts, text, calls."""
    if answer.thoughts:
        yield {
            "type": "reasoning",
            "id": f"rs_{answer.name}",
            "summary": [{"type": "summary_text", "text": answer.thoughts}],
            "encrypted_content": str(answer.number),
        }
    if answer.text or not answer.calls:
        text = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        yield {
            "type": "message",
            "id": f"msg_{answer.name}",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    for index, call in enumerate(answer.calls):
        yield {"id": f"fc_{answer.name}_{index}", "call_id": call["id"], "status": "completed"} | _call(
            call["function"], request
        )


def _call(function: Mapping[str, Any], request: AgentRequest) -> dict[str, Any]:
    """Returns what an item says of a call, as the request's tools have it."""
    name, arguments = function["name"], function["arguments"]
    kind = request.kinds.get(name)
    if kind == _CUSTOM_KIND:
        text = json.loads(arguments).get("input", arguments)
        return {"type": "custom_tool_call", "name": name, "input": str(text)}
    call = {"type": "function_call", "name": name, "arguments": arguments}
    return call if kind is None else {**call, "namespace": kind, "name": name.removeprefix(f"{kind}.")}


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an item as it starts."""
    empty: dict[str, dict[str, Any]] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "custom_tool_call": {"input": ""},
        "reasoning": {"summary": []},
    }
    status = {} if item["type"] == "reasoning" else {"status": "in_progress"}
    return {**item, **empty[item["type"]], **status}


def _text_events(place: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    place = {**place, "content_index": 0}
    text = part["text"]
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}


def _read_items(items: list[Mapping[str, Any]]) -> Iterator[Message]:
    """Yields messages; the items of one answer are one message."""
    answer: dict[str, Any] = {}
    for item in items:
        if added := _of_answer(item, answer):
            answer = added
            continue
        if answer:
            yield answer
            answer = {}
        yield _read_item(item)
    if answer:
        yield answer


def _of_answer(item: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer with an item of it; nothing if the item belongs to no answer."""
    message = {"role": "assistant", "content": "", **answer}
    match item.get("type", "message"):
        case "message" if item.get("role") == "assistant":
            message["content"] += _text(item["content"])
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            message["reasoning_content"] = "".join(str(part["text"]) for part in parts)
        case "function_call":
            _add_call(message, item, str(item["arguments"]))
        case "custom_tool_call":
            _add_call(message, item, json.dumps({"input": item["input"]}))
        case _:
            return {}
    return message


def _add_call(message: dict[str, Any], item: Mapping[str, Any], arguments: str) -> None:
    space = item.get("namespace")
    name = f"{space}.{item['name']}" if space else str(item["name"])
    call = {
        "id": str(item["call_id"]),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    message["tool_calls"] = [*message.get("tool_calls", []), call]


def _read_item(item: Mapping[str, Any]) -> Message:
    match item.get("type", "message"):
        case "message":
            role = "system" if item["role"] == "developer" else str(item["role"])
            return {"role": role, "content": _parts(item["content"])}
        case "function_call_output" | "custom_tool_call_output":
            return {
                "role": "tool",
                "tool_call_id": str(item["call_id"]),
                "content": _parts(item["output"]),
            }
        case kind:
            raise RefusedRequest(f"an item of type {kind!r} cannot be shown to the policy")


def _format(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the form in which the answer is asked for, under the name that chat completions have for it."""
    text = body.get("text")
    form = text.get("format") if isinstance(text, Mapping) else None
    return {"response_format": form} if form else {}


def _text(content: Any) -> str:
    parts = _parts(content)
    return parts if isinstance(parts, str) else "".join(str(part.get("text", "")) for part in parts)


def _parts(content: Any) -> Any:
    """Returns content as text, or as parts of a chat message."""
    if isinstance(content, str):
        return content
    return [_part(part) for part in read_list(content, "content")]


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": str(part["text"])}
        case "refusal":
            return {"type": "text", "text": str(part["refusal"])}
        case "input_image":
            return {"type": "image_url", "image_url": {"url": part["image_url"]}}
        case kind:
            raise RefusedRequest(f"content of type {kind!r} cannot be shown to the policy")


def _read_tool(tool: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the functions of a tool and their kinds; a namespace has several, and a tool of the server
    (`web_search`) none: the policy is not shown it.
    """
    match tool.get("type"):
        case "function":
            yield _function(tool, str(tool["name"])), ""
        case "custom":
            yield _function({**tool, "parameters": _CUSTOM}, str(tool["name"])), _CUSTOM_KIND
        case "namespace":
            for nested in read_list(tool.get("tools"), "tools"):
                yield _function(nested, f"{tool['name']}.{nested['name']}"), str(tool["name"])


def _function(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = {
        "name": name,
        "description": str(tool.get("description") or ""),
        "parameters": tool.get("parameters") or {},
    }
    return {"type": "function", "function": function}
