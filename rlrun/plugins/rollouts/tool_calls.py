"""Reads the tool calls in a policy's answer. Pure functions.

`hermes` (Qwen3 and many others):  `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of times
`llama3`:                          `{"name": …, "parameters": {…}}` alone, or several separated by `;`
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlrun.models.json_files import check_depth, parse_json

Syntax = Literal["auto", "hermes", "llama3"]

_HERMES = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that could be read."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A tool call that cannot be read."""

    why: str
    """What is wrong with the call, as the policy is told."""


def parse_calls(text: str, syntax: Syntax) -> list[ToolCall | Malformed]:
    """Returns the calls of one answer in order, without those inside `<think>`. `text` has no end token.

    `auto` reads either format.
    """
    answer = text.rpartition("</think>")[2]
    if "<think>" in answer:  # cut off while thinking
        return []
    if syntax == "hermes" or (syntax == "auto" and "<tool_call>" in answer):
        return [_hermes(body, end) for body, end in _HERMES.findall(answer)]
    return _llama3(answer.strip(), tagged=_TAG in answer)


def _hermes(body: str, end: str) -> ToolCall | Malformed:
    if not end:
        return Malformed("the tool call has no closing </tool_call>")
    try:
        value = parse_json(body)
    except ValueError as error:
        return Malformed(f"the tool call is not JSON: {error}")
    return _call(value, "arguments")


def _llama3(answer: str, *, tagged: bool) -> list[ToolCall | Malformed]:
    """Reads calls in Llama 3's format. Text after `<|python_tag|>` must be a call; other text need not be."""
    body = answer.rpartition(_TAG)[2].strip()
    if not tagged and not re.match(r'\{\s*"(name|type)"', body):
        return []
    calls: list[ToolCall | Malformed] = []
    decoder = json.JSONDecoder()
    while body:
        try:
            value, end = decoder.raw_decode(body)
            check_depth(value)
        except (ValueError, RecursionError) as error:
            return [*calls, Malformed(f"the tool call is not JSON: {error}")]
        calls.append(_call(value, "parameters"))
        body = body[end:].lstrip(" ;\n")
    return calls


def _call(value: Any, key: str) -> ToolCall | Malformed:
    """Reads `{"name": …, key: {…}}`. A few models write the other format's key for the arguments."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return Malformed(f'a tool call must be {{"name": …, "{key}": {{…}}}}')
    arguments = value.get(key, value.get("parameters", value.get("arguments", {})))
    if isinstance(arguments, str):
        arguments = _read(arguments)
    if not isinstance(arguments, Mapping):
        return Malformed(f"the {key} of {value['name']} are not a JSON object")
    return ToolCall(value["name"], dict(arguments))


def _read(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text
