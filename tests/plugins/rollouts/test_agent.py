"""Agents against the recording endpoint: what is trained is what the policy saw and made, token by token."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psutil
import pytest

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.authoring.rollout_testing import ScriptedSession, check_agent
from rlrun.plugins.failures import PolicyError
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.registry import build
from rlrun.plugins.rollouts.agent.address import address_in
from rlrun.plugins.rollouts.agent.rollout import Agent, AgentParams
from rlrun.plugins.rollouts.agent.turn_deadline import TurnDeadline
from rlrun.plugins.types import Row, Status
from tests.waiting import PATIENCE, wait_for_ends

Messages = list[dict[str, Any]]
HI = {"role": "user", "content": "a question"}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}


class Client:
    """What an agent does: posts messages, reads answers."""

    def __init__(self, task: AgentTask, http: aiohttp.ClientSession) -> None:
        self.task, self.http = task, http

    async def post(self, body: Mapping[str, Any], key: str | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key or self.task.api_key}"}
        url = f"{self.task.base_url}/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def say(self, *messages: Mapping[str, Any], **body: Any) -> dict[str, Any]:
        status, answer = await self.post({"model": "any", "messages": list(messages), **body})
        assert status == 200, answer
        return answer["choices"][0]["message"]


async def run(
    act: Callable[[Client], Awaitable[Any]], answers: Sequence[str], **given: Any
) -> tuple[list[Trajectory], ScriptedSession]:
    """Executes an agent that is a function."""
    params = {name: given.pop(name) for name in AgentParams.model_fields if name in given}
    rollout = Agent(AgentParams(command=("none",), **params))

    class Acting:
        async def run(self, task: AgentTask) -> Any:
            async with aiohttp.ClientSession() as http:
                return await act(Client(task, http))

    rollout._agent = Acting()  # type: ignore[assignment]
    session = ScriptedSession(answers, row=Row("0", [HI], label="4", metadata={"city": "Rome"}), **given)
    try:
        return await rollout.run(session), session
    finally:
        await rollout.close()


def shown(trajectory: Trajectory) -> tuple[str, list[tuple[str, bool]]]:
    """The prompt, and the response as runs of equal mask."""
    tokens, _, mask, _ = trajectory.response()
    runs: list[tuple[str, bool]] = []
    for token, kept in zip(tokens, mask > 0, strict=True):
        if runs and runs[-1][1] == kept:
            runs[-1] = (runs[-1][0] + chr(token), bool(kept))
        else:
            runs.append((chr(token), bool(kept)))
    return "".join(map(chr, trajectory.prompt)), runs


async def test_a_conversation_is_one_sample_with_what_was_given_masked() -> None:
    async def act(client: Client) -> None:
        first = await client.say(HI)
        second = await client.say(HI, first, {"role": "user", "content": "sure?"})
        await client.say(HI, first, {"role": "user", "content": "sure?"}, second, HI)

    [one], session = await run(act, ["four", "yes", "bye"])
    assert shown(one) == (
        "user: a question\0\nassistant: ",
        [
            ("four\0", True),
            ("\nuser: sure?\0\nassistant: ", False),
            ("yes\0", True),
            ("\nuser: a question\0\nassistant: ", False),
            ("bye\0", True),
        ],
    )
    assert session.asked[2].tolist() == [*one.prompt, *one.response()[0][: -len("bye\0")]]


async def test_after_a_policy_error_the_samples_have_its_reward() -> None:
    async def act(client: Client) -> None:
        await client.say(HI)
        raise PolicyError("the policy deleted its own files", reward=-0.5)

    [one], _ = await run(act, ["four"])
    assert one.status is Status.COMPLETED
    assert one.info == {"reward": -0.5, "policy_error": 1, "samples": 1, "trained_share": 1.0}


class ImpatientAfterAnswers(TurnDeadline):
    """Expires right after the first answer."""

    @contextmanager
    def answering(self) -> Iterator[None]:
        with super().answering():
            yield
        self._timeout.reschedule(asyncio.get_running_loop().time())


async def test_an_agent_that_hangs_after_an_answer_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Client) -> None:
        await client.say(HI)
        await asyncio.Event().wait()

    monkeypatch.setattr("rlrun.plugins.rollouts.agent.rollout.TurnDeadline", ImpatientAfterAnswers)
    [one], _ = await run(act, ["four"], turn_timeout=PATIENCE)
    assert one.status is Status.ABORTED
    assert shown(one)[1] == [("four\0", True)]


async def test_an_agent_that_hangs_before_its_first_request_fails() -> None:
    async def act(client: Client) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"no request within turn_timeout = 0\.001 s"):
        await run(act, [], turn_timeout=0.001)


async def test_the_deadline_of_a_turn_stops_while_the_policy_answers() -> None:
    turns = TurnDeadline(PATIENCE)
    async with turns:
        assert turns._timeout.when() is not None
        with turns.answering(), turns.answering():
            assert turns._timeout.when() is None
        assert turns._timeout.when() is not None
    with turns.answering():  # an answer that ends after the agent
        assert not turns.expired


async def test_the_share_of_sampled_tokens_that_are_trained_is_noted() -> None:
    async def act(client: Client) -> None:
        await client.say(HI, model="title")
        await client.say({"role": "user", "content": "other"}, model="policy")

    [one], _ = await run(act, ["123", "1234567"], trained_models=("policy",))
    assert one.info == {"samples": 1, "trained_share": 8 / 12}


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.7", "127.0.0.7"), ("127.0.0.0/8", "127.0.0.1")])
async def test_the_endpoint_listens_only_at_its_address(host: str, expected: str) -> None:
    async def act(client: Client) -> None:
        assert client.task.base_url.startswith(f"http://{expected}:")
        assert (await client.post({"messages": [HI]}, key="another"))[0] == 401
        assert (await client.say(HI))["content"] == "four"
        port = int(client.task.base_url.split(":")[2].split("/")[0])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.8", port)

    await run(act, ["four"], host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0.0.0.0/0", "gateway", "10.0.0.300", ""])
def test_an_endpoint_for_everyone_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"contains all addresses|neither an IP address"):
        AgentParams(command=("none",), host=host)


def test_a_network_must_hold_one_address_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("127.0.0.1", "10.1.0.7", "10.2.0.7", "fe80::1%eth0", "00:11:22:33:44:55")
    interfaces = {address: [SimpleNamespace(address=address)] for address in own}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    assert [address_in(value) for value in ("10.1.0.0/16", "fe80::/10", "10.9.9.9")] == [
        "10.1.0.7",
        "fe80::1",
        "10.9.9.9",
    ]
    with pytest.raises(ValueError, match=r"has 2 addresses \(10\.1\.0\.7, 10\.2\.0\.7\) in 10\.0\.0\.0/8"):
        address_in("10.0.0.0/8")
    with pytest.raises(ValueError, match=r"no address in 192\.168\.0\.0/16, .* 127\.0\.0\.1, 10\.1\.0\.7"):
        build("rollouts", "agent", {"command": ["none"], "host": "192.168.0.0/16"})


async def test_a_request_that_does_not_extend_a_recorded_answer_is_another_sample() -> None:
    async def act(client: Client) -> dict[str, Any]:
        first = await client.say(HI)
        await client.say(HI, first, {"role": "user", "content": "a"})
        await client.say(HI, first, {"role": "user", "content": "b"})
        await client.say({"role": "user", "content": "other"})
        await client.say(HI, {"role": "assistant", "content": "made up"}, HI)
        return {"reward": 0.5}

    trajectories, _ = await run(act, ["four", "1", "2", "3", "4"])
    assert [shown(one) for one in trajectories] == [
        (
            "user: a question\0\nassistant: ",
            [("four\0", True), ("\nuser: a\0\nassistant: ", False), ("1\0", True)],
        ),
        ("user: a question\0\nassistant: four\0\nuser: b\0\nassistant: ", [("2\0", True)]),
        ("user: other\0\nassistant: ", [("3\0", True)]),
        ("user: a question\0\nassistant: made up\0\nuser: a question\0\nassistant: ", [("4\0", True)]),
    ]
    assert [one.info for one in trajectories] == [{"reward": 0.5, "samples": 4, "trained_share": 1.0}] * 4


async def test_two_simultaneous_continuations_of_one_answer_are_two_samples() -> None:
    async def act(client: Client) -> None:
        first = await client.say(HI)
        await asyncio.gather(*(client.say(HI, first, {"role": "user", "content": c}) for c in "ab"))

    trajectories, _ = await run(act, ["four", "yes"])
    assert sorted(len(one.turns) for one in trajectories) == [1, 2]


async def test_tool_calls_are_returned_as_such_and_the_conversation_continues_with_their_results() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'

    async def act(client: Client) -> None:
        first = await client.say(HI, tools=[ADD])
        assert first["content"] == "I add."
        assert first["reasoning_content"] == "hm"
        [made] = first["tool_calls"]
        assert made["function"] == {"name": "add", "arguments": '{"a": 1}'}
        sent = {**first, "refusal": None}
        del sent["reasoning_content"]
        result = {"role": "tool", "tool_call_id": made["id"], "content": [{"type": "text", "text": "2\0"}]}
        await client.say(HI, sent, result, tools=[ADD])

    thought = f"<think>\nhm\n</think>\n\nI add.\n{call}"
    [one], _ = await run(act, [thought, "two"])
    prompt, runs = shown(one)
    assert prompt.startswith('tools: [{"type": "function"')
    assert runs == [(f"{thought}\0", True), ("\ntool: 2\nassistant: ", False), ("two\0", True)]


@pytest.mark.parametrize(("thinking", "samples"), [("keep", 1), ("template", 2)])
async def test_thoughts_stay_or_begin_another_sample(thinking: str, samples: int) -> None:
    async def act(client: Client) -> None:
        first = await client.say(HI)
        assert first["content"] == "four"
        await client.say(HI, first, HI)

    trajectories, _ = await run(act, ["<think>\nhm\n</think>\n\nfour", "yes"], thinking=thinking)
    assert len(trajectories) == samples


async def test_answers_are_limited_by_the_request_and_by_the_room_left() -> None:
    async def act(client: Client) -> None:
        status, answer = await client.post({"messages": [HI], "max_tokens": 3, "temperature": 1})
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"] == {"prompt_tokens": 29, "completion_tokens": 3, "total_tokens": 32}
        more = {"role": "user", "content": "x" * 200}
        status, answer = await client.post({"messages": [HI, answer["choices"][0]["message"], more]})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")

    [one], _ = await run(act, ["four and more"], max_new_tokens=64)
    assert one.status is Status.TRUNCATED
    assert shown(one)[1] == [("fou", True)]


@pytest.mark.parametrize(
    ("limit", "status"), [(3, Status.COMPLETED), (12, Status.TRUNCATED), (99, Status.TRUNCATED)]
)
async def test_only_the_job_s_own_limit_truncates_a_sample(limit: int, status: Status) -> None:
    """An agent that asks for a short answer gets one, and what it gets is whole."""

    async def act(client: Client) -> None:
        _, answer = await client.post({"messages": [HI], "max_tokens": limit})
        assert answer["choices"][0]["finish_reason"] == "length"

    [one], _ = await run(act, ["twenty letters or more than that"], max_new_tokens=12)
    assert one.status is status


async def test_all_turns_of_a_conversation_share_the_limit_of_a_response() -> None:
    """A short prompt leaves room in the sample, but not in the response."""

    async def act(client: Client) -> None:
        first = await client.say(HI)
        _, answer = await client.post({"messages": [HI, first, HI]})
        assert answer["choices"][0]["finish_reason"] == "length"

    question = "x" * 200  # the sample has room for it, the agent asks something shorter
    [one], session = await run(
        act, ["four", "and more than there is room for"], max_new_tokens=48, prompt=question
    )
    assert one.status is Status.TRUNCATED
    assert len(one.response()[0]) == 48 < session.max_tokens - len(one.prompt)


async def test_a_turn_that_reaches_its_own_limit_truncates_the_sample() -> None:
    async def act(client: Client) -> None:
        _, answer = await client.post({"messages": [HI], "max_tokens": 30})
        assert answer["usage"]["completion_tokens"] == 5

    [one], _ = await run(act, ["four and more"], max_turn_tokens=5)
    assert one.status is Status.TRUNCATED


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages must be a list"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": [HI], "n": 2}, "n = 2 is not the job's: leave it out"),
        ({"messages": [HI], "temperature": 0.7}, "temperature = 0.7 is not the job's, 1.0"),
        ({"messages": [HI], "seed": 1}, 'with other_settings = "ignore" under [rollout.function]'),
        ({"messages": [HI], "tools": [ADD], "tool_choice": "required"}, "tool_choice = 'required' is not"),
        ({"messages": [HI], "response_format": {"type": "json_object"}}, "response_format = "),
        ({"messages": [HI], "max_tokens": "9"}, "max_tokens must be a whole number"),
        ({"messages": [HI], "max_tokens": True}, "max_tokens must be a whole number"),
        ({"messages": [HI], "stop": ["x"] * 33}, "or a list of at most 32"),
        ({"messages": [HI], "stop": "x" * 1025}, "a string of at most 1024 characters"),
        ({"messages": [HI], "stop": [5]}, "stop must be a string"),
        ({"messages": [HI], "stop": {"a": 1}}, "stop must be a string"),
        ({"messages": [HI], "tools": "all"}, "tools must be a list of objects"),
        ({"messages": ["hi"]}, "a message must be an object"),
        ({"messages": [{"role": "user", "content": [{"image": "x"}]}]}, "content must be text"),
        ({"messages": [{"content": "x"}]}, "KeyError: 'role'"),
    ],
)
async def test_requests_that_cannot_be_served_say_why(body: Mapping[str, Any], message: str) -> None:
    async def act(client: Client) -> None:
        status, answer = await client.post(body)
        assert status == 400
        assert message in answer["error"]["message"]
        assert (await client.post({"messages": [HI]}, key="guessed"))[0] == 401
        await client.say(HI)

    await run(act, ["four"])


async def test_the_endpoint_is_for_executions_that_run_and_for_their_hosts_and_json() -> None:
    rows: list[tuple[str, str, dict[str, str], int]] = [
        ("POST", "/chat/completions", {"Host": "evil.example"}, 403),
        ("POST", "/chat/completions", {"Content-Type": "text/plain"}, 415),
        ("POST", "/chat/completions", {"Authorization": ""}, 401),
        ("GET", "/models", {"Host": "evil.example"}, 403),
        ("GET", "/models", {"Authorization": "Bearer guessed"}, 401),
        ("GET", "/models", {}, 200),
    ]

    async def act(client: Client) -> None:
        for method, path, changed, status in rows:
            own = {"Authorization": f"Bearer {client.task.api_key}", "Content-Type": "application/json"}
            url, raw = client.task.base_url + path, json.dumps({"messages": [HI]})
            async with client.http.request(method, url, data=raw, headers=own | changed) as answer:
                assert (path, changed, answer.status) == (path, changed, status)
        deep = b"[" * 200_000
        headers = {"Authorization": f"Bearer {client.task.api_key}", "Content-Type": "application/json"}
        url = f"{client.task.base_url}/chat/completions"
        async with client.http.post(url, data=deep, headers=headers) as answer:
            assert answer.status == 400
        await client.say(HI)

    await run(act, ["four"])


async def test_an_engine_that_fails_fails_the_execution_whatever_the_agent_makes_of_it() -> None:
    async def act(client: Client) -> None:
        await client.say(HI)
        client.task.metadata["session"].generate = fail  # type: ignore[index]
        status, answer = await client.post({"messages": [HI]})
        assert (status, answer["error"]["message"]) == (503, "RuntimeError: engine down")

    async def fail(*_: Any) -> None:
        raise RuntimeError("engine down")

    session = ScriptedSession(["four"])
    object.__setattr__(session.prompt, "row", Row("0", [HI], metadata={"session": session}))
    rollout = Agent(AgentParams(command=("none",)))

    class Acting:
        async def run(self, task: AgentTask) -> None:
            async with aiohttp.ClientSession() as http:
                await act(Client(task, http))

    rollout._agent = Acting()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="engine down"):
        await rollout.run(session)
    await rollout.close()


async def test_an_agent_without_requests_gives_no_sample() -> None:
    async def act(client: Client) -> None:
        pass

    with pytest.raises(ValueError, match="received no answer from the policy"):
        await run(act, ["four"])


PROGRAM = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
assert "api_key" not in task
body = json.dumps({"messages": task["messages"]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
answer = json.load(urllib.request.urlopen(request))
print("some output")
print(json.dumps({"reward": float(answer["choices"][0]["message"]["content"] == task["label"])}))
"""


async def test_a_command_is_an_agent_too() -> None:
    rollout = build("rollouts", "agent", {"command": [sys.executable, "-c", PROGRAM]})
    session = ScriptedSession(["4"], row=Row("0", [HI], label="4"))
    [one] = await rollout.run(session)
    await rollout.close()
    assert one.info == {"reward": 1.0, "samples": 1, "trained_share": 1.0}


SECRETS = {
    "HF_TOKEN": "hf_x",
    "WANDB_API_KEY": "x",
    "RAY_AUTH_TOKEN": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "ANYTHING": "x",
    "OPENAI_API_KEY": "the user's own",
    "HTTPS_PROXY": "http://user:password@proxy",
}


@pytest.mark.parametrize(
    ("passed", "more"),
    [([], set()), (["HTTPS_PROXY", "UNSET"], {"HTTPS_PROXY"}), (["HF_TOKEN"], {"HF_TOKEN"})],
)
async def test_a_command_gets_the_variables_that_the_spec_names_and_no_secrets(
    passed: list[str], more: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SECRETS, "LC_TIME": "C"}.items():
        monkeypatch.setenv(name, value)
    program = PROGRAM + "print(json.dumps({'found': dict(os.environ)}))"
    params = {"command": [sys.executable, "-c", program], "environment": passed}
    rollout = build("rollouts", "agent", params)
    [one] = await rollout.run(ScriptedSession(["4"], row=Row("0", [HI], label="4")))
    await rollout.close()
    found = one.info["found"]
    assert {"PATH", "HOME", "LC_TIME", "OPENAI_BASE_URL"} <= found.keys()
    assert found["OPENAI_API_KEY"] != SECRETS["OPENAI_API_KEY"], "the execution's own key"
    assert found.keys() & SECRETS.keys() == {"OPENAI_API_KEY", *more}


def test_an_agent_in_our_own_process_has_no_environment_of_its_own() -> None:
    with pytest.raises(ValueError, match="environment is for a command"):
        build("rollouts", "agent", {"agent": {"type": "solve_and_select"}, "environment": ["HF_TOKEN"]})


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('no luck')", "ended with status 1: no luck"),
        ("print('hi')", "no answer from the policy"),
    ],
)
async def test_a_command_that_fails_says_why(program: str, message: str) -> None:
    rollout = build("rollouts", "agent", {"command": [sys.executable, "-c", program]})
    with pytest.raises((RuntimeError, ValueError), match=message):
        await rollout.run(ScriptedSession(["4"]))
    await rollout.close()


async def test_a_command_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(6000)"])
open({str(pids)!r} + ".part", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename({str(pids)!r} + ".part", {str(pids)!r})
time.sleep(6000)
"""
    rollout = build("rollouts", "agent", {"command": [sys.executable, "-c", program]})
    running = asyncio.create_task(rollout.run(ScriptedSession(["4"])))
    async with asyncio.timeout(PATIENCE):
        while not pids.exists():  # noqa: ASYNC110 (another process makes it)
            await asyncio.sleep(0.01)
    processes = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await rollout.close()
    await asyncio.to_thread(wait_for_ends, processes)


def test_the_built_in_agent_keeps_its_contract() -> None:
    first, second = check_agent("solve_and_select", {"solvers": 2}, ["one", "two", "three"])
    assert [shown(one)[1] for one in first] == [[("one\0", True)], [("two\0", True)], [("three\0", True)]]
    assert "Answer 2:\ntwo" in shown(first[2])[0]
    assert first[0].info == second[0].info == {"answer": "three", "samples": 3, "trained_share": 1.0}


@pytest.mark.parametrize("given", [{}, {"command": ["x"], "agent": {"type": "solve_and_select"}}])
def test_an_agent_is_a_plugin_or_a_command(given: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"needs either a table \[rollout.function.agent\] or a command"):
        build("rollouts", "agent", given)
    assert json.dumps(given)
