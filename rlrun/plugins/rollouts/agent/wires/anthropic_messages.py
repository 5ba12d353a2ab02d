"""`/v1/messages`, as Anthropic's SDKs and Claude Code ask.

Content is a list of blocks; results of tools are blocks of the user's next message. A thought has a
signature, which comes back with it: here it is the answer's number.
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
    read_stops,
)
from rlrun.plugins.types import Message

_ERRORS = {
    "context_length_exceeded": "invalid_request_error",
    "invalid_api_key": "authentication_error",
    "engine_error": "overloaded_error",
}
_NO_TOOLS = {"type": "none"}


class AnthropicMessages:
    """Anthropic's messages."""

    path = "/v1/messages"

    def read(self, body: Any) -> AgentRequest:
        """Returns what a request asks for."""
        body = read_object(body)
        messages = [*_system(body.get("system"))]
        for message in read_list(body.get("messages"), "messages"):
            messages += _read_message(message)
        if not messages:
            raise RefusedRequest("messages must be a list of at least one message")
        tools = [] if body.get("tool_choice") == _NO_TOOLS else read_list(body.get("tools") or [], "tools")
        return AgentRequest(
            messages,
            [
                _read_tool(tool) for tool in tools if "input_schema" in tool
            ],  # others run on Anthropic's servers
            read_limit(body.get("max_tokens"), "max_tokens"),
            read_stops(body.get("stop_sequences")),
            str(body.get("model") or "policy"),
            bool(body.get("stream")),
            decided=decided_by_job(body),
        )

    def whole(self, answer: Answer, request: AgentRequest) -> Mapping[str, Any]:
        """Returns the body of an answer."""
        usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}
        ended = {"stop_reason": _stop_reason(answer), "stop_sequence": None, "usage": usage}
        return _frame(answer) | {"content": list(_blocks(answer))} | ended

    def events(self, answer: Answer, request: AgentRequest) -> Iterator[Event]:
        """Yields the events that Anthropic's SDKs put together."""
        usage = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
        ended = {"stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=_frame(answer) | {"content": []} | ended)
        for index, block in enumerate(_blocks(answer)):
            start, deltas = _pieces(block)
            yield _event("content_block_start", index=index, content_block=start)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        end = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        yield _event("message_delta", delta=end, usage={"output_tokens": answer.completion_tokens})
        yield _event("message_stop")

    def error(self, message: str, code: str) -> Mapping[str, Any]:
        """Returns the body of an error. Claude Code compacts where the prompt `is too long: N tokens > M`."""
        kind = _ERRORS.get(code, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def error_event(self, message: str, code: str) -> Event:
        """Returns the event of an error after a stream has begun."""
        return Event(self.error(message, code), "error")


def _event(name: str, **values: Any) -> Event:
    return Event({"type": name, **values}, name)


def _frame(answer: Answer) -> dict[str, Any]:
    return {"id": f"msg_{answer.name}", "type": "message", "role": "assistant", "model": answer.model}


def _stop_reason(answer: Answer) -> str:
    return "tool_use" if answer.calls else "max_tokens" if answer.finish == "length" else "end_turn"


def _blocks(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yields the blocks of an answer: thoughts, text, calls."""
    if answer.thoughts:
        yield {"type": "thinking", "thinking": answer.thoughts, "signature": str(answer.number)}
    if answer.text or not answer.calls:
        yield {"type": "text", "text": answer.text}
    for call in answer.calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns a block as it starts, and what is then added to it."""
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [thought, signature]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    added = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    return {**block, "input": {}}, [added]


def _system(value: Any) -> Iterator[Message]:
    """Yields the system prompt, a text or blocks of text."""
    if value:
        yield {"role": "system", "content": value if isinstance(value, str) else _parts(value)}


def _read_message(message: Mapping[str, Any]) -> Iterator[Message]:
    """Yields a message; results of tools come before the texts beside them."""
    role, content = str(message["role"]), message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    blocks = read_list(content, "content")
    if role == "assistant":
        yield _read_answer(blocks)
        return
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": str(block["tool_use_id"]),
                "content": _parts(block.get("content") or ""),
            }
    if rest := [block for block in blocks if block.get("type") != "tool_result"]:
        yield {"role": role, "content": _parts(rest)}


def _read_answer(blocks: list[Mapping[str, Any]]) -> Message:
    """Returns an answer of the policy, or of another model, that comes back."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for block in blocks:
        match block.get("type"):
            case "text":
                message["content"] += str(block["text"])
            case "thinking":
                message["reasoning_content"] = message.get("reasoning_content", "") + str(block["thinking"])
            case "tool_use":
                function = {"name": str(block["name"]), "arguments": json.dumps(block["input"])}
                message.setdefault("tool_calls", []).append(
                    {"id": str(block["id"]), "type": "function", "function": function}
                )
            case kind:
                raise RefusedRequest(f"a block of type {kind!r} cannot be shown to the policy")
    return message


def _parts(blocks: Any) -> Any:
    """Returns blocks of text and images as parts of a chat message, without their cache_control."""
    if isinstance(blocks, str):
        return blocks
    return [_part(block) for block in read_list(blocks, "content")]


def _part(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block.get("type") == "text":
        return {"type": "text", "text": str(block["text"])}
    if block.get("type") == "image":
        source = block["source"]
        url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise RefusedRequest(f"a block of type {block.get('type')!r} cannot be shown to the policy")


def _read_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        "name": str(tool["name"]),
        "description": str(tool.get("description", "")),
        "parameters": tool["input_schema"],
    }
    return {"type": "function", "function": function}
