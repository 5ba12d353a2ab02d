"""Calls as each family of models writes them, and as they get them wrong."""

import pytest

from rlrun.plugins.rollouts.agent.messages import answer_message
from rlrun.plugins.rollouts.tool_calls import Malformed, Syntax, ToolCall, parse_calls

ADD = '{"name": "add", "arguments": {"a": 1}}'
CALL = ToolCall("add", {"a": 1})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("It is 4.", []),
        (f"<tool_call>\n{ADD}\n</tool_call>", [CALL]),
        (f"Let me see.\n<tool_call>{ADD}</tool_call>\n<tool_call>{ADD}</tool_call>", [CALL, CALL]),
        (f"<think>\nI could <tool_call>{ADD}</tool_call>\n</think>\n\nIt is 4.", []),
        (f"<think>\nwhat now <tool_call>{ADD}</tool_call>", []),
        (f"<think>\nhm\n</think>\n\n<tool_call>\n{ADD}\n</tool_call>", [CALL]),
        ('<tool_call>{"name": "now"}</tool_call>', [ToolCall("now", {})]),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [CALL]),
        ('{"name": "add", "parameters": {"a": 1}}', [CALL]),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', [CALL]),
        ('{"type": "function", "name": "add", "parameters": {"a": 1}}', [CALL]),
        ('{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 1}}', [CALL, CALL]),
        ('{"answer": 4}', []),
        ('The call is {"name": "add"}', []),
    ],
)
def test_calls_are_found_where_they_are(text: str, calls: list) -> None:
    assert parse_calls(text, "auto") == calls


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"<tool_call>{ADD}", "no closing </tool_call>"),
        ("<tool_call>{'name': 'add'}</tool_call>", "not JSON"),
        ("<tool_call>[1, 2]</tool_call>", 'a tool call must be {"name"'),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "not JSON: it is nested more than 200 deep"),
        ('{"name": "add", "parameters": ' + '{"a": ' * 100_000, "not JSON"),
        ('{"name": "add", "parameters": ' + '{"a": ' * 300 + "1" + "}" * 301, "nested more than 200 deep"),
        (
            '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
            "of add are not a JSON object",
        ),
        ('{"name": "add", "parameters": {"a": 1}', "not JSON"),
        ('<|python_tag|>print("hi")', "not JSON"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(text: str, why: str) -> None:
    [call] = parse_calls(text, "auto")
    assert isinstance(call, Malformed)
    assert why in call.why


def test_a_syntax_that_is_given_is_the_only_one_read() -> None:
    assert parse_calls(f"<tool_call>{ADD}</tool_call>", "llama3") == []
    assert parse_calls('{"name": "add", "parameters": {}}', "hermes") == []


SCHEMA = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
    },
}
FIND = ToolCall("find", {"text": "12", "count": 3})
PATHS = ToolCall("now", {})
WRITTEN: dict[Syntax, tuple[str, list[ToolCall]]] = {
    "qwen3_coder": (
        "I look.\n<tool_call>\n<function=find>\n<parameter=text>\n12\n</parameter>\n<parameter=count>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [FIND, PATHS],
    ),
    "glm": (
        "I look.\n<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>12</arg_value>\n"
        "<arg_key>count</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now</tool_call>",
        [FIND, PATHS],
    ),
    "minimax_m2": (
        'I look.\n<minimax:tool_call>\n<invoke name="find">\n<parameter name="text">12</parameter>\n'
        '<parameter name="count">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
        "</minimax:tool_call>",
        [FIND, PATHS],
    ),
    "kimi_k2": (
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>"
        '{"text": "12", "count": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        [FIND, PATHS],
    ),
    "deepseek_v3": (
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>"
        '{"text": "12", "count": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>'
        "function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [FIND, PATHS],
    ),
    "mistral": (
        'I look.[TOOL_CALLS]find[ARGS]{"text": "12", "count": 3}[TOOL_CALLS]now[ARGS]{}',
        [FIND, PATHS],
    ),
    "gpt_oss": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.find "
        '<|constrain|>json<|message|>{"text": "12", "count": 3}',
        [FIND],
    ),
    "pythonic": ('<|python_start|>[find(text="12", count=3), now()]<|python_end|>', [FIND, PATHS]),
}
"""An answer in each syntax, which says `I look.` where the syntax has text beside calls."""


@pytest.mark.parametrize("syntax", WRITTEN)
def test_calls_of_each_family_are_read_and_recognised(syntax: Syntax) -> None:
    text, calls = WRITTEN[syntax]
    assert parse_calls(text, syntax, [SCHEMA]) == calls
    assert parse_calls(text, "auto", [SCHEMA]) == calls
    assert parse_calls(f"<think>\n{text}\n</think>\n\nIt is 4.", "auto", [SCHEMA]) == []
    message = answer_message(text, "auto", 1, [SCHEMA])
    assert [call["function"]["name"] for call in message["tool_calls"]] == [call.name for call in calls]
    assert message["content"] == ("I look." if text.startswith("I look.") else None)


def test_gpt_oss_thinks_and_answers_in_channels() -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 4."
    message = answer_message(text, "auto", 1)
    assert message == {"role": "assistant", "content": "It is 4.", "reasoning_content": "hm"}


def test_mistral_has_an_older_form_and_thoughts_of_its_own() -> None:
    listed = f"[THINK]hm[/THINK][TOOL_CALLS] [{ADD}, {ADD}]"
    assert parse_calls(listed, "auto") == [CALL, CALL]
    assert answer_message(listed, "auto", 1)["reasoning_content"] == "hm"


def test_values_without_a_schema_are_json_where_they_can_be() -> None:
    [call] = parse_calls(WRITTEN["glm"][0].partition("\n<tool_call>now")[0], "glm")
    assert call == ToolCall("find", {"text": 12, "count": 3})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>\n<function=find>\n<parameter=text>\n1", "no closing </tool_call>"),
        ('<minimax:tool_call>\n<invoke name="find">', "no closing </invoke>"),
        ("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{", "no closing <|tool_call_end|>"),
        ("<|tool_call_begin|>f f<|tool_call_argument_begin|>{}<|tool_call_end|>", "functions.NAME:NUMBER"),
        ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{<｜tool▁call▁end｜>", "the arguments of f are not JSON"),
        ("[TOOL_CALLS]f[ARGS][1]", "the arguments of f are not a JSON object"),
        ("[TOOL_CALLS] [{]", "the tool call is not JSON"),
        (
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{",
            "the arguments of f are not JSON",
        ),
        ("<|python_start|>[f(1)]<|python_end|>", "a tool call must be NAME(KEY=VALUE, …)"),
        ("<|python_start|>[f(a=__import__('os'))]", "not a list of NAME(KEY=VALUE, …)"),
        ("<|python_start|>" + "[" * 5000, "not a list of NAME(KEY=VALUE, …)"),
    ],
)
def test_a_call_of_each_family_that_cannot_be_read_says_why(text: str, why: str) -> None:
    [call] = parse_calls(text, "auto")
    assert isinstance(call, Malformed)
    assert why in call.why


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("tags", "<find>"),
        ("glm", f"<tool_call>find{'<arg_key>' * 100_000}</tool_call>"),
        ("minimax_m2", f"<minimax:tool_call><invoke name=find>{'<parameter name=a>' * 100_000}</invoke>"),
        ("minimax_m2", f"<minimax:tool_call>{'<invoke name=find' * 100_000}"),
        ("kimi_k2", "<|tool_call_begin|>"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>"),
        (
            "deepseek_v3",
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>f```json{' ' * 100_000}x<｜tool▁call▁end｜>",
        ),
        ("gpt_oss", f"<|channel|>{'a' * 100_000}"),
    ],
)
def test_an_answer_that_repeats_a_mark_does_not_stop_the_job_for_hours(syntax: Syntax, text: str) -> None:
    repeated = text if len(text) > 100_000 else text * 100_000
    assert len(parse_calls(repeated, syntax, [SCHEMA])) <= 1


def test_tags_are_closed_by_their_own_names() -> None:
    schemas = [{"function": {"name": name, "parameters": {}}} for name in ("a", "b")]
    text = "<a>1</b><b>2</a></b><b> 3 </b><a>4"
    calls = [ToolCall("a", {"text": "1</b><b>2"}), ToolCall("b", {"text": "3"})]
    assert parse_calls(text, "tags", schemas) == calls
