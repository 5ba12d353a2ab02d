"""The endpoint of agents in each format, asked by the official SDKs: one sample, the policy's own tokens."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.authoring.rollout_testing import IMAGE, ScriptedSession
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.rollouts.agent import delivery
from rlrun.plugins.rollouts.agent.rollout import Agent, AgentParams
from rlrun.plugins.types import Row
from tests.plugins.rollouts.test_agent import Client, run, shown

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
THOUGHT = f"<think>\nhm\n</think>\n\nI add.\n{CALL}"
QUESTION = "a question"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}


def openai_client(task: AgentTask) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0)


def anthropic_client(task: AgentTask) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=task.base_url.removesuffix("/v1"), api_key=task.api_key, max_retries=0)


async def chat(task: AgentTask, *, stream: bool) -> None:
    """Two turns with a call, over chat completions."""
    client = openai_client(task).chat.completions
    tools: Any = [{"type": "function", "function": {**FUNCTION, "strict": True}}]  # streams parse no others
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    if stream:
        async with client.stream(model="m", messages=messages, tools=tools) as events:
            [choice] = (await events.get_final_completion()).choices
    else:
        [choice] = (await client.create(model="m", messages=messages, tools=tools)).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I add."
    [call] = choice.message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"a": 1}  # type: ignore[union-attr]
    answer = choice.message.model_dump(exclude_none=True, exclude={"parsed"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "2"}
    last = await client.create(model="m", messages=[*messages, answer, result], tools=tools)
    assert last.choices[0].message.content == "two"
    assert last.usage is not None
    assert last.usage.completion_tokens == 4


async def messages(task: AgentTask, *, stream: bool) -> None:
    """The same over Anthropic's messages."""
    client = anthropic_client(task).messages
    tools: Any = [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}]
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    asked: dict[str, Any] = {"model": "m", "max_tokens": 500, "tools": tools}
    if stream:
        async with client.stream(messages=history, **asked) as events:
            answer = await events.get_final_message()
    else:
        answer = await client.create(messages=history, **asked)
    assert answer.stop_reason == "tool_use"
    thought, text, call = answer.content
    assert (thought.type, text.type, call.type) == ("thinking", "text", "tool_use")
    assert (thought.thinking, text.text, call.input) == ("hm", "I add.", {"a": 1})  # type: ignore[union-attr]
    edited = {"type": "tool_use", "id": call.id, "name": "add", "input": {"a": 1, "b": False}}  # type: ignore[union-attr]
    back = [block.model_dump() for block in (thought, text)] + [edited]
    result = {"type": "tool_result", "tool_use_id": edited["id"], "content": [{"type": "text", "text": "2"}]}
    result["cache_control"] = {"type": "ephemeral"}
    history += [{"role": "assistant", "content": back}, {"role": "user", "content": [result]}]
    counted = await client.count_tokens(model="m", messages=history, tools=tools)
    last = await client.create(messages=history, **asked)
    assert [block.text for block in last.content] == ["two"]  # type: ignore[union-attr]
    assert last.stop_reason == "end_turn"
    assert counted.input_tokens > 40
    assert last.usage.output_tokens == 4


async def responses(task: AgentTask, *, stream: bool) -> None:
    """The same over responses."""
    client = openai_client(task).responses
    tools: Any = [{"type": "function", **FUNCTION}, {"type": "web_search"}]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    if stream:
        async with client.stream(model="m", input=items, tools=tools, store=False) as events:
            answer: Any = await events.get_final_response()
    else:
        answer = await client.create(model="m", input=items, tools=tools, store=False)
    thought, text, call = answer.output
    assert (thought.type, text.type, call.type) == ("reasoning", "message", "function_call")
    assert answer.output_text == "I add."
    assert json.loads(call.arguments) == {"a": 1}
    back = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    last = await client.create(model="m", input=[*items, *back, result], tools=tools, store=False)
    assert last.output_text == "two"
    assert last.usage is not None
    assert last.usage.output_tokens == 4


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("talk", [chat, messages, responses])
async def test_each_sdk_gets_its_answers_and_the_conversation_is_one_sample(
    talk: Callable[..., Awaitable[None]], stream: bool
) -> None:
    async def act(client: Client) -> None:
        await talk(client.task, stream=stream)

    [one], _ = await run(act, [THOUGHT, "two"])
    prompt, runs = shown(one)
    assert prompt.startswith('tools: [{"type": "function"')
    assert "web_search" not in prompt
    assert runs == [(f"{THOUGHT}\0", True), ("\ntool: 2\nassistant: ", False), ("two\0", True)]


TOOLS_OF_CODEX = [
    {"type": "custom", "name": "apply_patch", "description": "Takes a patch."},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", **FUNCTION}]},
]


@pytest.mark.parametrize(
    ("drawn", "item"),
    [
        (
            '{"name": "apply_patch", "arguments": {"input": "*** Begin"}}',
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin"},
        ),
        (
            '{"name": "agents.add", "arguments": {"a": 1}}',
            {"type": "function_call", "namespace": "agents", "name": "add", "arguments": '{"a": 1}'},
        ),
    ],
)
async def test_calls_of_custom_and_grouped_tools_come_as_their_client_has_them(
    drawn: str, item: dict[str, Any]
) -> None:
    async def act(client: Client) -> None:
        url = f"{client.task.base_url}/responses"
        headers = {"Authorization": f"Bearer {client.task.api_key}"}
        body: dict[str, Any] = {"input": QUESTION, "tools": TOOLS_OF_CODEX}
        async with client.http.post(url, json=body, headers=headers) as response:
            [made] = (await response.json())["output"]
        assert item.items() <= made.items()
        kind = "custom_tool_call_output" if made["type"].startswith("custom") else "function_call_output"
        result = {"type": kind, "call_id": made["call_id"], "output": "done"}
        body["input"] = [{"role": "user", "content": QUESTION}, made, result]
        async with client.http.post(url, json=body, headers=headers) as response:
            assert response.status == 200

    assert len((await run(act, [f"<tool_call>{drawn}</tool_call>", "good"]))[0]) == 1


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "messages",
            {"messages": [{"role": "user", "content": "x" * 200}], "max_tokens": 9},
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 219 tokens > 61 maximum",
                },
            },
        ),
        (
            "responses",
            {"input": "x" * 200},
            {
                "error": {
                    "message": "prompt is too long: 219 tokens > 61 maximum",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "context_length_exceeded",
                }
            },
        ),
    ],
)
async def test_a_prompt_that_is_too_long_is_refused_as_each_client_knows_it(
    path: str, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    async def act(client: Client) -> None:
        for stream in (False, True):
            headers = {"x-api-key": client.task.api_key}
            url = f"{client.task.base_url}/{path}"
            async with client.http.post(url, json={**body, "stream": stream}, headers=headers) as response:
                assert response.status == 400
                assert await response.json() == expected
        await client.say({"role": "user", "content": "a"})

    await run(act, ["four"], max_new_tokens=32)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("messages", [], "the body must be a JSON object"),
        ("messages", {"messages": "hi"}, "messages must be a list of objects"),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "of type 'document'",
        ),
        ("messages", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 0}, "at least 1"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": 1}]}]}, "Error"),
        (
            "messages",
            {"messages": [{"role": "user", "content": QUESTION}], "tool_choice": {"type": "any"}},
            "tool_choice = {'type': 'any'} is not the job's",
        ),
        ("responses", {"input": []}, "input must be a text, or a list of at least one item"),
        ("responses", {"input": QUESTION, "previous_response_id": "r"}, "send the whole history as input"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "an item of type 'item_reference'"),
        ("responses", {"input": QUESTION, "text": {"format": {"type": "json_object"}}}, "response_format = "),
        ("responses", {"input": QUESTION, "temperature": 0.3}, "temperature = 0.3 is not the job's"),
    ],
)
async def test_what_a_wire_cannot_serve_is_said(path: str, body: Any, message: str) -> None:
    async def act(client: Client) -> None:
        headers = {"x-api-key": client.task.api_key}
        async with client.http.post(f"{client.task.base_url}/{path}", json=body, headers=headers) as response:
            assert response.status == 400
            assert message in (await response.json())["error"]["message"]
        await client.say({"role": "user", "content": "a"})

    await run(act, ["four"])


async def test_settings_of_the_job_stand_where_the_spec_says_so() -> None:
    async def act(client: Client) -> None:
        await client.say({"role": "user", "content": "a"}, temperature=0.3, seed=7, tool_choice="required")

    await run(act, ["four"], other_settings="ignore")


class Slow(ScriptedSession):
    """A session whose policy answers when it is told to."""

    def __init__(self, answers: list[str]) -> None:
        super().__init__(answers, row=Row("0", [{"role": "user", "content": QUESTION}]))
        self.may_answer = asyncio.Event()
        self.began = asyncio.Event()

    async def generate(self, *arguments: Any) -> Generation:
        """Waits first."""
        self.began.set()
        await self.may_answer.wait()
        return await super().generate(*arguments)


async def executed(session: ScriptedSession, act: Callable[[AgentTask], Awaitable[None]]) -> list[Trajectory]:
    """Executes a function as the agent."""
    rollout = Agent(AgentParams(command=("none",)))

    class Acting:
        async def run(self, task: AgentTask) -> None:
            await act(task)

    rollout._agent = Acting()  # type: ignore[assignment]
    try:
        return await rollout.run(session)
    finally:
        await rollout.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_that_was_not_delivered_is_given_to_the_request_that_comes_back_for_it(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PING_SECONDS", 0.01)
    session = Slow(["four", "another"])
    body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": QUESTION}]}

    async def act(task: AgentTask) -> None:
        url, headers = f"{task.base_url}/messages", {"x-api-key": task.api_key}

        async def ask(**more: Any) -> Any:
            async with (
                aiohttp.ClientSession() as http,
                http.post(url, json=body | more, headers=headers) as response,
            ):
                return await response.json()

        first = asyncio.create_task(ask(stream=stream))
        await session.began.wait()
        first.cancel()  # closes the connection
        await asyncio.wait([first])
        second = asyncio.create_task(ask(max_tokens=40))
        await asyncio.sleep(0)
        session.may_answer.set()
        assert (await second)["content"][0]["text"] == "four"
        assert (await ask())["content"][0]["text"] == "another"

    trajectories = await executed(session, act)
    assert len(trajectories) == 2
    assert len(session.asked) == 2


async def test_a_stream_shows_that_it_is_alive_and_then_names_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "PING_SECONDS", 0.01)
    session = Slow([])

    async def act(task: AgentTask) -> None:
        url, headers = f"{task.base_url}/chat/completions", {"Authorization": f"Bearer {task.api_key}"}
        body = {"stream": True, "messages": [{"role": "user", "content": QUESTION}]}
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, json=body, headers=headers) as response,
        ):
            assert await response.content.readline() == b": waiting\n"
            session.may_answer.set()
            assert b'data: {"error": {"message": ' in await response.read()

    with pytest.raises(IndexError):  # there is no answer
        await executed(session, act)


async def test_clients_find_the_server_and_its_model() -> None:
    async def act(client: Client) -> None:
        async with client.http.head(client.task.base_url.removesuffix("v1")) as response:
            assert response.status == 200
        assert [model.id async for model in openai_client(client.task).models.list()] == ["policy"]
        await client.say({"role": "user", "content": "a"})

    await run(act, ["four"])


async def test_a_client_that_renders_itself_sends_and_gets_tokens() -> None:
    async def act(client: Client) -> None:
        url = client.task.base_url.removesuffix("v1") + "inference/v1/generate"
        headers = {"Authorization": f"Bearer {client.task.api_key}"}

        async def ask(tokens: list[int]) -> list[int]:
            async with client.http.post(url, json={"token_ids": tokens}, headers=headers) as response:
                [choice] = (await response.json())["choices"]
            assert choice["finish_reason"] == "stop"
            assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
            return choice["token_ids"]

        prompt = list(map(ord, "one?"))
        first = await ask(prompt)
        assert "".join(map(chr, first)) == "four\0"
        await ask([*prompt, *first, *map(ord, "more?")])
        await ask([*prompt, *first, *map(ord, "else?")])
        unknown = {"token_ids": [*prompt, sys.maxunicode + 1]}
        for wrong in ({"token_ids": []}, {"token_ids": ["a"]}, {"token_ids": [1], "stream": True}, unknown):
            async with client.http.post(url, json=wrong, headers=headers) as response:
                assert response.status == 400
                refused = await response.text()
        assert "the tokenizer's ids end at 1114111" in refused
        image = {"token_ids": [*prompt, *first, IMAGE, *map(ord, "?")]}
        async with client.http.post(url, json=image, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["message"] == (
                "token_ids has 65532, an image's placeholder, at position 9: token ids bring no images; "
                "send the conversation to /v1/chat/completions"
            )

    [one, other], _ = await run(act, ["four", "yes", "no"])
    assert shown(one) == ("one?", [("four\0", True), ("more?", False), ("yes\0", True)])
    assert shown(other) == ("one?four\0else?", [("no\0", True)])
