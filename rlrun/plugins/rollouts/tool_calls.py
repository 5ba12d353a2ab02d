"""Reads the tool calls in a policy's answer. Pure functions.

hermes       `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Qwen3 and many others)
qwen3_coder  `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`
glm          `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>` (GLM-4.5 to 4.7)
minimax_m2   `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>…`
kimi_k2      `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`
deepseek_v3  `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`, and V3's block of JSON
mistral      `[TOOL_CALLS]NAME[ARGS]{…}`, and the older `[TOOL_CALLS] [{"name": …, "arguments": {…}}]`
gpt_oss      `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}`
llama3       `{"name": …, "parameters": {…}}` alone, or several separated by `;`
pythonic     `[NAME(KEY=VALUE), …]` alone (Llama 4)
tags         `<NAME>TEXT</NAME>`, where TEXT is the tool's first argument (Search-R1; `auto` does not read it)

All but `llama3` and `pythonic` may have text before the calls. SGLang 0.5.23's parsers read the tests'
answers alike.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlrun.models.json_files import check_depth, parse_json

Syntax = Literal[
    "auto",
    "hermes",
    "qwen3_coder",
    "glm",
    "minimax_m2",
    "kimi_k2",
    "deepseek_v3",
    "mistral",
    "gpt_oss",
    "llama3",
    "pythonic",
    "tags",
]
Tools = Sequence[Mapping[str, Any]]

_TAGGED = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>]+)>(.*?)(?:</function>\s*)?", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>]+)>(.*?)(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)
_GLM = re.compile(r"\s*([\w.:-]+)\s*((?:<arg_key>.*)?)", re.DOTALL)
_MINIMAX = re.compile(r"<invoke name=\"?([^\"<>]+)\"?>(.*?)(</invoke>|$)", re.DOTALL)
_MINIMAX_PARAMETER = re.compile(r"<parameter name=\"?([^\"<>]+)\"?>")
_DEEPSEEK_BLOCK = re.compile(r"(\S+)\s*```json(.*)```", re.DOTALL)
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*([\w.-]+)(?:\[CALL_ID\][\w-]+)?\[ARGS\]")
_CHANNEL = re.compile(
    r"<\|channel\|>(\w++)([^<]*+)(?:<\|constrain\|>\w+)?<\|message\|>(.*?)"
    r"(?=<\|end\|>|<\|call\|>|<\|return\|>|<\|start\|>|$)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]+)")
_TAG = "<|python_tag|>"
_STARTS = (
    "<tool_call>",
    "<minimax:tool_call>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "[TOOL_CALLS]",
)
"""What stands between an answer's text and its calls."""


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


def parse_calls(text: str, syntax: Syntax, tools: Tools = ()) -> list[ToolCall | Malformed]:
    """Returns the calls of one answer in order, without those inside of thoughts. `text` has no end token.

    `auto` reads every syntax. `tools`: what the policy was offered; arguments that a syntax writes as text
    have the types of these schemas.
    """
    answer = without_thoughts(text)
    if syntax == "auto":
        syntax = _recognised(answer)
    return list(_READERS[syntax](answer, tools))


def without_thoughts(text: str) -> str:
    """Returns an answer after its thoughts; "" if it was cut off while thinking."""
    for begin, end in (("<think>", "</think>"), ("[THINK]", "[/THINK]")):
        text = text.rpartition(end)[2]
        if begin in text:
            return ""
    return text


def channels(text: str) -> list[tuple[str, str]]:
    """Returns the channels of gpt-oss in an answer with their texts; empty for other models' answers."""
    return [(name, body) for name, _, body in _CHANNEL.findall(text)]


def text_before_calls(text: str) -> str:
    """Returns the text of an answer with calls; those in the syntaxes of Llama have no other text."""
    places = [text.index(start) for start in _STARTS if start in text]
    return text[: min(places)].strip() if places else ""


def _recognised(answer: str) -> Syntax:
    """Returns the syntax whose marks an answer has."""
    if "<tool_call>" in answer:
        if "<function=" in answer:
            return "qwen3_coder"
        body = answer.partition("<tool_call>")[2].partition("</tool_call>")[0]
        return "glm" if _GLM.fullmatch(body) else "hermes"
    marks: Sequence[tuple[str, Syntax]] = (
        ("<minimax:tool_call>", "minimax_m2"),
        ("<|tool_call_begin|>", "kimi_k2"),
        ("<｜tool▁call▁begin｜>", "deepseek_v3"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|channel|>", "gpt_oss"),
        ("<|python_start|>", "pythonic"),
    )
    for mark, syntax in marks:
        if mark in answer:
            return syntax
    return "pythonic" if re.match(r"\s*\[\s*[A-Za-z_][\w.]*\(", answer) else "llama3"


def _hermes(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    for body, end in _TAGGED.findall(answer):
        yield _of_json(body, "arguments") if end else _unclosed("</tool_call>")


def _qwen3_coder(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    for body, end in _TAGGED.findall(answer):
        if not end:
            yield _unclosed("</tool_call>")
        elif (function := _FUNCTION.fullmatch(body)) is None:
            yield Malformed("a tool call must be <function=NAME> with <parameter=KEY> VALUE </parameter>")
        else:
            pairs = [(key, _unframed(value)) for key, value in _PARAMETER.findall(function[2])]
            yield _of_texts(function[1].strip(), pairs, tools)


def _glm(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    for body, end in _TAGGED.findall(answer):
        if not end:
            yield _unclosed("</tool_call>")
        elif (call := _GLM.fullmatch(body)) is None:
            yield Malformed(
                "a tool call must be NAME with <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>"
            )
        else:
            yield _of_texts(call[1], list(_glm_arguments(call[2])), tools)


def _glm_arguments(text: str) -> Iterator[tuple[str, str]]:
    for key, rest in _pieces(text, "<arg_key>", "</arg_key>"):
        value = rest.lstrip().removeprefix("<arg_value>")
        if value != rest.lstrip() and "</arg_value>" in value:
            yield key, value.partition("</arg_value>")[0]


def _minimax_m2(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    for name, body, end in _MINIMAX.findall(answer.partition("<minimax:tool_call>")[2]):
        if not end:
            yield _unclosed("</invoke>")
        else:
            # "" before the first, then the key and the text after each tag of a parameter
            _, *rest = _MINIMAX_PARAMETER.split(body)
            pairs = [
                (key, _unframed(value.partition("</parameter>")[0]))
                for key, value in zip(rest[::2], rest[1::2], strict=True)
                if "</parameter>" in value
            ]
            yield _of_texts(name, pairs, tools)


def _kimi_k2(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    for name, body in _pieces(answer, "<|tool_call_begin|>", "<|tool_call_argument_begin|>"):
        arguments, end, _ = body.partition("<|tool_call_end|>")
        named = re.fullmatch(r"\s*(?:functions\.)?([\w.-]+?)(?::\d+)?\s*", name)
        if not end:
            yield _unclosed("<|tool_call_end|>")
        elif named is None:
            yield Malformed("a tool call must begin with functions.NAME:NUMBER")
        else:
            yield _with_arguments(named[1], arguments)


def _deepseek_v3(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    for first, rest in _pieces(answer, "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"):
        second, end, _ = rest.partition("<｜tool▁call▁end｜>")
        block = _DEEPSEEK_BLOCK.fullmatch(second.rstrip())
        if not end:
            yield _unclosed("<｜tool▁call▁end｜>")
        elif block is not None and first.strip() == "function":
            yield _with_arguments(block[1], block[2])
        else:
            yield _with_arguments(first.strip(), second)


def _mistral(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    calls = list(_MISTRAL.finditer(answer))
    if not calls and "[TOOL_CALLS]" in answer:
        try:
            listed, _ = json.JSONDecoder().raw_decode(answer.partition("[TOOL_CALLS]")[2].strip())
            check_depth(listed)
        except (ValueError, RecursionError) as error:
            yield Malformed(f"the tool call is not JSON: {error}")
            return
        yield from (_call(call, "arguments") for call in (listed if isinstance(listed, list) else [listed]))
    for number, call in enumerate(calls):
        end = calls[number + 1].start() if number + 1 < len(calls) else len(answer)
        yield _with_arguments(call[1], answer[call.end() : end])


def _gpt_oss(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    for _, about, body in _CHANNEL.findall(answer):
        if recipient := _RECIPIENT.search(about):
            yield _with_arguments(recipient[1], body)


def _pythonic(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    body = answer.replace("<|python_start|>", "").replace("<|python_end|>", "").strip()
    try:
        listed = ast.parse(body, mode="eval").body
        calls = listed.elts if isinstance(listed, ast.List) else [listed]
        for call in calls:
            if not isinstance(call, ast.Call) or call.args:
                yield Malformed("a tool call must be NAME(KEY=VALUE, …)")
                continue
            arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg}
            yield ToolCall(ast.unparse(call.func), arguments)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        yield Malformed("the tool call is not a list of NAME(KEY=VALUE, …)")


def _tags(answer: str, tools: Tools) -> Iterator[ToolCall | Malformed]:
    functions = [tool["function"] for tool in tools]
    arguments = {
        each["name"]: next(iter(each["parameters"].get("properties", {})), "text") for each in functions
    }
    last = {name: answer.rfind(f"</{name}>") for name in arguments}
    at = 0
    for tag in re.finditer(f"<({'|'.join(map(re.escape, arguments))})>", answer):
        name, start = tag[1], tag.end()
        if at <= tag.start() and start <= last[name]:
            end = answer.index(f"</{name}>", start)
            yield ToolCall(name, {arguments[name]: answer[start:end].strip()})
            at = end


def _pieces(text: str, begin: str, middle: str) -> Iterator[tuple[str, str]]:
    """Yields what is between each `begin` and the `middle` after it, and what follows up to the next `begin`.

    Regular expressions with two gaps take minutes for an answer that repeats one of the marks thousands of
    times, as policies do; this takes time in proportion to the answer.
    """
    for piece in text.split(begin)[1:]:
        first, found, second = piece.partition(middle)
        if found:
            yield first, second


def _unclosed(end: str) -> Malformed:
    return Malformed(f"the tool call has no closing {end}")


def _unframed(value: str) -> str:
    """Returns a value without the line breaks that frame it."""
    return value.removeprefix("\n").removesuffix("\n")


def _of_json(body: str, key: str) -> ToolCall | Malformed:
    try:
        value = parse_json(body)
    except ValueError as error:
        return Malformed(f"the tool call is not JSON: {error}")
    return _call(value, key)


def _with_arguments(name: str, body: str) -> ToolCall | Malformed:
    """Returns a call whose name and arguments are apart; no arguments are an empty table."""
    try:
        arguments = parse_json(body.strip() or "{}")
    except ValueError as error:
        return Malformed(f"the arguments of {name} are not JSON: {error}")
    if not isinstance(arguments, Mapping):
        return Malformed(f"the arguments of {name} are not a JSON object")
    return ToolCall(name, dict(arguments))


def _of_texts(name: str, pairs: Sequence[tuple[str, str]], tools: Tools) -> ToolCall:
    """Returns a call whose arguments are texts: strings where the tool's schema says so, else JSON."""
    types = _types(name, tools)
    return ToolCall(name, {key.strip(): _typed(value, types.get(key.strip())) for key, value in pairs})


def _types(name: str, tools: Tools) -> Mapping[str, Any]:
    """Returns the schemas' types of a tool's arguments."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            given = properties if isinstance(properties, Mapping) else {}
            return {key: about.get("type") for key, about in given.items() if isinstance(about, Mapping)}
    return {}


def _typed(value: str, kind: object) -> Any:
    return value if kind == "string" else _read(value)


def _llama3(answer: str, tools: Tools) -> list[ToolCall | Malformed]:
    """Reads calls in Llama 3's format. Text after `<|python_tag|>` must be a call; other text need not be."""
    answer, tagged = answer.strip(), _TAG in answer
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


_READERS: Mapping[
    Syntax, Callable[[str, Tools], Iterator[ToolCall | Malformed] | list[ToolCall | Malformed]]
] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen3_coder,
    "glm": _glm,
    "minimax_m2": _minimax_m2,
    "kimi_k2": _kimi_k2,
    "deepseek_v3": _deepseek_v3,
    "mistral": _mistral,
    "gpt_oss": _gpt_oss,
    "llama3": _llama3,
    "pythonic": _pythonic,
    "tags": _tags,
}
