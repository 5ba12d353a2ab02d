"""Chat messages between OpenAI's form, chat templates and the policy's own text: pure."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlrun.plugins.rollouts.tool_calls import Malformed, Syntax, ToolCall, parse_calls
from rlrun.plugins.types import Message

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Role, text, and the calls by name and arguments: what makes two messages the same."""


def key_of(message: Message) -> Key:
    """What has to be equal for two messages to be one; clients add and drop the rest as they like."""
    calls = tuple(
        (str(one["function"]["name"]), str(one["function"].get("arguments", "")))
        for one in message.get("tool_calls") or ()
    )
    return str(message["role"]), text_of(message), calls


def text_of(message: Message) -> str:
    """The content as text. ValueError for content that is none."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise ValueError("content must be text, or a list of text parts")


def for_template(message: Message) -> dict[str, Any]:
    """As chat templates take it: content as text, arguments as tables."""
    made: dict[str, Any] = {"role": message["role"], "content": text_of(message)}
    made |= {key: message[key] for key in ("name", "tool_call_id", "reasoning_content") if message.get(key)}
    if message.get("tool_calls"):
        made["tool_calls"] = [_call_for_template(one) for one in message["tool_calls"]]
    return made


def answer_message(text: str, syntax: Syntax | None, number: int) -> dict[str, Any]:
    """The policy's answer as an assistant's message; thoughts apart, calls as such unless `syntax` is None.

    Where a call cannot be read the answer is left as it is, for the agent to judge. `number` is the answer's
    own, so that calls have ids of their own.
    """
    thoughts, closed, said = text.rpartition("</think>")
    message: dict[str, Any] = {"role": "assistant", "content": said.strip() if closed else text}
    if closed:
        message["reasoning_content"] = thoughts.removeprefix("<think>").strip()
    calls = parse_calls(text, syntax) if syntax is not None else []
    if calls and not any(isinstance(call, Malformed) for call in calls):
        message["content"] = _before_calls(str(message["content"])) or None
        message["tool_calls"] = [
            _call(call, f"call_{number}_{place}")
            for place, call in enumerate(calls)
            if isinstance(call, ToolCall)
        ]
    return message


def _before_calls(text: str) -> str:
    """What is said before the first call; a call in Llama 3's form is all there is."""
    return text.partition("<tool_call>")[0].strip() if "<tool_call>" in text else ""


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": name, "type": "function", "function": function}


def _call_for_template(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    with suppress(TypeError, ValueError):  # arguments that are no JSON are shown as they are
        function["arguments"] = json.loads(function.get("arguments") or "{}")
    return {"id": call.get("id"), "type": "function", "function": function}
