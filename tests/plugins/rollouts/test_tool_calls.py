"""Calls as Qwen3 and Llama 3 write them, and as they get them wrong."""

import pytest

from rlrun.plugins.rollouts.tool_calls import Malformed, ToolCall, parse_calls

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
