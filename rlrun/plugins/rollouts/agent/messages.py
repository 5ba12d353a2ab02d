"""Converts chat messages between OpenAI's format, chat templates and the policy's text. Pure functions."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlrun.models.json_files import parse_json
from rlrun.plugins.images import Image
from rlrun.plugins.rollouts.tool_calls import (
    Malformed,
    Syntax,
    ToolCall,
    Tools,
    channels,
    parse_calls,
    text_before_calls,
)
from rlrun.plugins.types import Message


def content_of(message: Message) -> str | list[dict[str, Any]]:
    """Returns the content as chat templates take it: text, or parts if it has images.

    Raises ValueError for content that is neither text nor decoded images.
    """
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, Sequence) else [content]
    if all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    return [_part(part) for part in parts]


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, Mapping) and isinstance(part.get("image"), Image):
        return {"type": "image"}
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    raise ValueError("content must be text, or a list of parts of type text and image_url")


def for_template(message: Message) -> dict[str, Any]:
    """Returns a message in the form that chat templates take: content as text, arguments as tables."""
    converted: dict[str, Any] = {"role": message["role"], "content": content_of(message)}
    optional = ("name", "tool_call_id", "reasoning_content")
    converted |= {key: message[key] for key in optional if message.get(key)}
    if message.get("tool_calls"):
        converted["tool_calls"] = [_call_for_template(call) for call in message["tool_calls"]]
    return converted


def answer_message(text: str, syntax: Syntax | None, number: int, tools: Tools = ()) -> dict[str, Any]:
    """Returns the policy's answer as an assistant message, with its thoughts in `reasoning_content`.

    Tool calls become `tool_calls`, unless `syntax` is None or one of them is malformed; then they stay in the
    text, for the agent to judge. `number` is unique to the answer, so that each call gets its own id.
    """
    thoughts, answer = _split(text)
    message: dict[str, Any] = {"role": "assistant", "content": answer}
    if thoughts is not None:
        message["reasoning_content"] = thoughts
    calls = parse_calls(text, syntax, tools) if syntax is not None else []
    if calls and not any(isinstance(call, Malformed) for call in calls):
        is_split = bool(channels(text))
        message["content"] = (answer if is_split else text_before_calls(answer)) or None
        message["tool_calls"] = [
            _call(call, f"call_{number}_{index}")
            for index, call in enumerate(calls)
            if isinstance(call, ToolCall)
        ]
    return message


def _split(text: str) -> tuple[str | None, str]:
    """Returns the thoughts of an answer, None if it has none, and the rest."""
    if parts := channels(text):  # gpt-oss
        thoughts = "".join(body for name, body in parts if name == "analysis")
        return thoughts or None, "".join(body for name, body in parts if name == "final")
    for begin, end in (("<think>", "</think>"), ("[THINK]", "[/THINK]")):
        if end in text:
            thoughts, _, answer = text.rpartition(end)
            return thoughts.removeprefix(begin).strip(), answer.strip()
    return None, text


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": name, "type": "function", "function": function}


def _call_for_template(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    with suppress(TypeError, ValueError):  # arguments that are not JSON are shown as they are
        function["arguments"] = parse_json(function.get("arguments") or "{}")
    return {"id": call.get("id"), "type": "function", "function": function}
