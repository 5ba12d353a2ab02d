"""The agent `workers` over HTTP, and trajectories that a worker assembles itself."""

import asyncio
from typing import Any

import aiohttp
import numpy as np
import pytest

from rlrun.plugins.authoring.rollout_testing import IMAGE, ScriptedSession
from rlrun.plugins.failures import Failure, InfrastructureError, PolicyError
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.types import Status, VersionSpan
from rlrun.runner.host.background import cancel_all
from rlrun.runner.host.network import free_port

KEY = "open-sesame"
OWN: dict[str, Any] = {
    "prompt_tokens": [1, 2],
    "response_tokens": [10, 11, 12, 13, 14],
    "loss_mask": [1, 1, 0, 1, 0],
    "log_probs": [-0.5, -1, 0, -2, 0],
    "versions": [[3, 0, 1], [4, 1, 5]],
}


class Worker:
    """What a worker sends."""

    def __init__(self, http: aiohttp.ClientSession, port: int) -> None:
        self.http = http
        self.tasks = f"http://127.0.0.1:{port}/tasks"

    async def post(self, path: str, body: Any, key: str = KEY) -> tuple[int, Any]:
        url = path if path.startswith("http") else f"{self.tasks}/{path}"
        for _ in range(500):  # the server starts with the first execution
            try:
                async with self.http.post(
                    url, json=body, headers={"Authorization": f"Bearer {key}"}
                ) as answer:
                    return answer.status, await answer.json()
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.01)
        raise AssertionError("no server")

    async def lease(self) -> tuple[str, dict[str, Any]]:
        status, answer = await self.post("lease", {"worker": "w", "wait": 5})
        assert status == 200
        return answer["lease"], answer["task"]

    async def ask(self, task: dict[str, Any]) -> str:
        body = {"model": "p", "messages": task["messages"]}
        status, answer = await self.post(f"{task['base_url']}/chat/completions", body, task["api_key"])
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])

    async def give(self, task: dict[str, Any], *trajectories: dict[str, Any]) -> tuple[int, Any]:
        return await self.post(
            f"{task['base_url']}/trajectories", {"trajectories": trajectories}, task["api_key"]
        )


async def run(act: Any, *sessions: ScriptedSession, **params: Any) -> list[list[Trajectory] | BaseException]:
    """Returns what the executions of the sessions become while a worker acts."""
    port = free_port("127.0.0.1")
    agent = {"type": "workers", "port": port, "key": KEY, **params}
    rollout = build("rollouts", "agent", {"agent": agent})
    executions = [asyncio.create_task(rollout.run(session)) for session in sessions]
    try:
        async with aiohttp.ClientSession() as http:
            await act(Worker(http, port))
        return await asyncio.gather(*executions, return_exceptions=True)
    finally:
        await cancel_all(executions)
        await rollout.close()


async def test_a_worker_s_requests_are_recorded_as_those_of_any_agent() -> None:
    async def act(worker: Worker) -> None:
        for number in range(2):
            lease, task = await worker.lease()
            said = await worker.ask(task)
            assert (await worker.post(f"{lease}/alive", {}))[0] == 200
            info = {"said": said, "number": number}
            for new in (True, False):  # the second answer is that of a request which is sent again
                assert await worker.post(f"{lease}/result", {"info": info}) == (200, {"new": new})
            assert (await worker.post(f"{lease}/result", {"info": {}}))[0] == 409

    sessions = [ScriptedSession([f"answer {name}"], id=name) for name in ("0-0", "0-1")]
    results = await run(act, *sessions)
    for session, number, result in zip(sessions, range(2), results, strict=True):
        assert isinstance(result, list)
        [trajectory] = result
        assert trajectory.info["said"] == f"answer {session.id}" and trajectory.info["number"] == number
        assert np.array_equal(trajectory.turns[0].tokens, session.made[0].tokens)


async def test_failures_of_workers_have_types() -> None:
    async def act(worker: Worker) -> None:
        for failure in ({"failure": "sandbox"}, {"failure": "policy", "reward": -1}, {}):
            lease, task = await worker.lease()
            await worker.ask(task)
            assert (await worker.post(f"{lease}/failed", {"error": "broken", **failure}))[0] == 200

    sandbox, policy, other = await run(act, *(ScriptedSession(["a"], id=f"0-{n}") for n in range(3)))
    assert isinstance(sandbox, InfrastructureError) and sandbox.failure is Failure.SANDBOX
    assert isinstance(policy, list) and policy[0].info["reward"] == -1
    assert isinstance(other, RuntimeError) and not isinstance(other, PolicyError)


async def test_requests_that_are_wrong_say_why() -> None:
    async def act(worker: Worker) -> None:
        assert (await worker.post("lease", {}, key="wrong"))[0] == 401
        status, answer = await worker.post("lease", {"wait": 1e9})
        assert status == 422 and "wait: must be at most 60" in answer["error"]
        lease, task = await worker.lease()
        status, answer = await worker.post(f"{lease}/result", {"infos": {}})
        assert status == 422 and "infos" in answer["error"]
        assert (await worker.post("unknown/result", {}))[0] == 410
        await worker.ask(task)
        await worker.post(f"{lease}/result", {})
        assert await worker.post("lease", {"wait": 0}) == (200, {"lease": None})

    await run(act, ScriptedSession(["a"]))
    with pytest.raises(PluginError, match=r"tasks at 10\.0\.0\.1 need a key"):
        build("rollouts", "agent", {"agent": {"type": "workers", "host": "10.0.0.1"}})


async def test_trajectories_of_a_worker_are_trained_instead_of_the_recorded_ones() -> None:
    session = ScriptedSession(["a"])
    session.version = 3

    async def act(worker: Worker) -> None:
        lease, task = await worker.lease()
        session.version = 4  # an update while it runs
        assert await worker.give(task, OWN, {**OWN, "versions": 4, "status": "truncated"}) == (
            200,
            {"trajectories": 2},
        )
        await worker.post(f"{lease}/result", {"info": {"reward": 1, "turn_rewards": [1, 2, 3, 4]}})

    [result] = await run(act, session)
    assert isinstance(result, list)
    first, second = result
    tokens, log_probs, mask, versions = first.response()
    assert tokens.tolist() == [10, 11, 12, 13], "what is given last is not part of the sample"
    assert mask.tolist() == [1, 1, 0, 1] and log_probs.tolist() == [-0.5, -1, 0, -2]
    assert versions == (VersionSpan(3, 0, 1), VersionSpan(4, 1, 4))
    assert (first.status, second.status) == (Status.COMPLETED, Status.TRUNCATED)
    assert (first.turn_rewards, second.turn_rewards) == ([1, 2], [3, 4])
    assert first.info["samples"] == 2 and first.info["reward"] == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"log_probs": [-0.5]}, "log_probs has 1 values for 5 response_tokens"),
        ({"loss_mask": [0] * 5}, "loss_mask is 0 everywhere"),
        ({"loss_mask": [1, 1, 0, 2, 0]}, "loss_mask.3"),
        ({"log_probs": [-0.5, 0.5, 0, -2, 0]}, "log_probs.1 is 0.5, which is no log-prob"),
        ({"response_tokens": [10, 11, -1, 13, 14]}, "response_tokens.2 is -1; the tokenizer's ids"),
        ({"prompt_tokens": [1, 0x110000]}, "prompt_tokens.1 is 1114112; the tokenizer's ids"),
        ({"prompt_tokens": [IMAGE]}, "an image's placeholder"),
        ({"versions": 5}, "versions has 5; since the execution began, engines served 3 to 4"),
        ({"versions": 2}, "versions has 2; since the execution began, engines served 3 to 4"),
        ({"versions": [[3, 0, 1], [4, 2, 5]]}, "versions do not cover the response"),
        ({"versions": [[3, 0, 4]]}, "versions end at 4, and the response at 5"),
        (
            {"response_tokens": [10] * 9, "loss_mask": [1] * 9, "log_probs": [-1] * 9},
            "max_response_tokens is 8",
        ),
        ({"mask": []}, "mask"),
    ],
)
async def test_a_trajectory_that_cannot_be_trained_on_is_refused_by_name(
    change: dict[str, Any], problem: str
) -> None:
    session = ScriptedSession(["a"], max_new_tokens=8, id="7-2")
    session.version = 3

    async def act(worker: Worker) -> None:
        lease, task = await worker.lease()
        session.version = 4
        status, answer = await worker.give(task, OWN, {**OWN, **change})
        assert status == 400, answer
        message = answer["error"]["message"]
        assert message.startswith("execution 7-2") and "trajectories.1" in message and problem in message
        await worker.ask(task)
        await worker.post(f"{lease}/result", {})

    [result] = await run(act, session)
    assert isinstance(result, list) and len(result) == 1, "the recorded one is trained"
