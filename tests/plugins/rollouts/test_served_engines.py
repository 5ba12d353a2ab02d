"""Models of `[[engines]]` as executions ask them: the client, and the endpoint of agents and environments."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlrun.plugins import engines
from rlrun.plugins.authoring.rollout_testing import ScriptedEngine, ScriptedSession
from rlrun.plugins.engines import Address, EngineRefusal, ServedEngine
from rlrun.plugins.failures import Failure, InfrastructureError, failure_of
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.registry import build
from rlrun.runner.contracts.named_engines import NamedEngines

HELLO = [{"role": "user", "content": "hello"}]
AGENT = """
from rlrun.specs.sections.section import Section


class Asks:
    Params = Section
    api_version = 1

    def __init__(self, params): ...

    async def run(self, task):
        from openai import AsyncOpenAI

        policy = AsyncOpenAI(base_url=task.base_url, api_key=task.api_key)
        said = await task.engine("user").chat(task.messages, max_tokens=9)
        answer = await policy.chat.completions.create(model="p", messages=[{"role": "user", "content": said}])
        user = AsyncOpenAI(base_url=task.engines["user"].base_url, api_key=task.api_key)
        chunks = await user.chat.completions.create(model="p", messages=task.messages, stream=True)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
        return {"said": said, "answered": answer.choices[0].message.content, "streamed": streamed}
"""


class Server:
    """An engine that answers what a test scripts, and keeps what it was asked."""

    def __init__(self) -> None:
        self.script: list[tuple[int, str, str]] = []
        """Status, text and finish reason of each answer; then always the last one."""
        self.asked: list[dict[str, Any]] = []
        self.address = Address("")
        self.running = self.most_running = 0

    async def chat(self, request: web.Request) -> web.Response:
        self.asked.append({**await request.json(), "key": request.headers.get("Authorization")})
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        await asyncio.sleep(0)
        self.running -= 1
        status, text, finish = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
        return web.json_response({"choices": [choice]}, status=status)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(engines, "_MAX_PAUSE", 0.0)
    engine, app = Server(), web.Application()
    app.router.add_post("/v1/chat/completions", engine.chat)
    async with TestServer(app) as running:
        engine.address = Address(str(running.make_url("")).rstrip("/"), "secret", "default:user")
        yield engine


async def test_an_engine_is_asked_again_until_it_answers(server: Server) -> None:
    server.script = [(503, "", ""), (200, "half an ans", "abort"), (200, "hi", "stop")]
    client = ServedEngine(server.address, seed=5)
    assert await client.chat(HELLO, max_tokens=4) == "hi"
    assert await client.chat([{"role": "user", "content": "a<|im_end|>b"}], temperature=0.5) == "hi"
    first, *_, last = server.asked
    assert first == {
        "messages": HELLO,
        "max_tokens": 4,
        "seed": 5,
        "model": "default:user",
        "key": "Bearer secret",
    }
    assert last["messages"] == [{"role": "user", "content": "a< |im_end|>b"}], "it can end no turn"
    assert [body["seed"] for body in server.asked] == [5, 5, 5, 6]


async def test_what_an_engine_refuses_is_not_repeated(server: Server) -> None:
    server.script = [(400, "too long", "")]
    client = ServedEngine(server.address, seed=0)
    with pytest.raises(EngineRefusal, match=r"HTTP 400: .*too long"):
        await client.chat(HELLO)
    with pytest.raises(EngineRefusal, match="ask without `stream`"):
        await client.complete({"messages": HELLO, "stream": True})
    server.script = [(engines.NO_ANSWER, "", "")]
    with pytest.raises(InfrastructureError):
        await client.chat(HELLO)
    assert len(server.asked) == 2
    server.script = [(500, "", "")]
    with pytest.raises(InfrastructureError, match="no answer in 10 attempts"):
        await client.chat(HELLO)
    assert len(server.asked) == 12


async def test_executions_ask_one_after_the_other_where_rounding_may_not_depend_on_others(
    server: Server,
) -> None:
    server.script = [(200, "hi", "stop")]
    named = NamedEngines({"user": [server.address]}, one_at_a_time=True)
    await asyncio.gather(*(named.engine("user", seed).chat(HELLO) for seed in range(8)))
    assert (server.most_running, len(server.asked)) == (1, 8)
    assert await NamedEngines({"user": [Address("http://a"), server.address]}).engine("user", 7).chat(HELLO)
    with pytest.raises(ValueError, match=r'named "usher"; those of this job: user'):
        named.engine("usher", 0)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    path = tmp_path / "asks.py"
    path.write_text(AGENT)
    return {"agent": {"type": f"{path}:Asks"}}


async def executed(session: ScriptedSession, params: dict[str, Any]) -> list[Trajectory]:
    rollout = build("rollouts", "agent", params)
    try:
        trajectories: list[Trajectory] = await rollout.run(session)
        return trajectories
    finally:
        await rollout.close()


async def test_an_agent_asks_an_engine_beside_the_policy(agent: dict[str, Any]) -> None:
    session = ScriptedSession(["an answer"], prompt="a task", engines={"user": ["please"], "judge": ["no"]})
    [trajectory] = await executed(session, {**agent, "engines": ["user"]})
    assert trajectory.info["said"] == "please" and trajectory.info["answered"] == "an answer"
    assert len(trajectory.turns) == 1, "only the policy's answers are trained"
    assert trajectory.info["streamed"] == "please"
    asked, streamed = session.engine("user").asked
    assert "stream" not in streamed, "engines answer in one piece"
    assert asked == {"messages": [{"role": "user", "content": "a task"}], "max_tokens": 9, "seed": 7} | {
        "model": "user"
    }
    with pytest.raises(ValueError, match='may ask judge, not "user"'):
        await executed(session, {**agent, "engines": ["judge"]})


async def test_an_engine_that_does_not_answer_fails_the_execution(
    agent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(self: ScriptedEngine, body: object) -> dict[str, Any]:
        raise InfrastructureError("the user is gone")

    monkeypatch.setattr(ScriptedEngine, "complete", gone)
    session = ScriptedSession(["an answer"], engines={"user": ["please"]})
    with pytest.raises(InfrastructureError, match="the user is gone") as raised:
        await executed(session, {**agent, "engines": ["user"]})
    assert failure_of(raised.value) is Failure.SERVICE


def test_the_task_of_a_program_has_the_addresses_and_no_key() -> None:
    from rlrun.plugins.agent_task import AgentTask
    from rlrun.plugins.rollouts.agent.command_agent import environment_for

    address = Address("http://127.0.0.1:1/engines/first-user", "secret", "first-user")
    task = AgentTask("0-0", HELLO, None, {}, 7, "http://127.0.0.1:1/v1", "secret", {"first-user": address})
    assert "secret" not in json.dumps(task.as_json())
    assert task.as_json()["engines"] == {"first-user": "http://127.0.0.1:1/engines/first-user/v1"}
    variables = environment_for(task, {}, ())
    assert variables["RLRUN_ENGINE_FIRST_USER_URL"] == "http://127.0.0.1:1/engines/first-user/v1"
