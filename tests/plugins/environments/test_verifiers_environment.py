"""Environments of verifiers 0.4, the real package, with a harness that needs no other package."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.authoring.rollout_testing import ScriptedSession
from rlrun.plugins.registry import PluginError, build

pytest.importorskip("verifiers.v1")

TASKSET = '''
"""Sums, a tool that adds, and a harness whose program asks with the tools' schemas and calls them."""

import json
import sys

import verifiers.v1 as vf

PROGRAM = """
import json, sys, urllib.request

url, key, model, prompt, turns = sys.argv[1:]
messages = [{"role": "user", "content": prompt}]
for _ in range(int(turns)):
    body = json.dumps({"model": model, "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    answer = urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, headers))
    message = json.load(answer)["choices"][0]["message"]
    messages += [message, {"role": "user", "content": "Are you sure?"}]
"""


class SumsHarnessConfig(vf.HarnessConfig):
    turns: int = 1


class SumsHarness(vf.Harness[SumsHarnessConfig]):
    NEEDS_CONTAINER = False
    SUPPORTS_RESUME = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        _, prompt = self.resolve_text_prompt(data)
        arguments = [endpoint, secret, ctx.model, prompt or "Begin.", str(self.config.turns)]
        return await runtime.run_program([sys.executable, "-c", PROGRAM, *arguments], {})


class SumsData(vf.TaskData):
    answer: str


class SumsTask(vf.Task[SumsData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if trace.last_reply == "break":
            raise KeyError("bug")
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return len(trace.last_reply)


class Sums(vf.Taskset[SumsTask]):
    def load(self):
        for a in range(3):
            yield SumsTask(SumsData(prompt=f"{a} + 1 =", answer=str(a + 1)), self.config.task)


__all__ = ["Sums", "SumsHarness"]
'''
AGENT = {"agent": {"type": "environment"}}


@pytest.fixture(autouse=True)
def _taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums_of_test.py").write_text(textwrap.dedent(TASKSET))
    monkeypatch.syspath_prepend(str(tmp_path))


def settings(**params: Any) -> dict[str, Any]:
    agent = {"harness": {"id": "sums_of_test", "turns": 2}}
    return {"env": {"taskset": {"id": "sums_of_test"}, "agent": agent}, **params}


async def test_an_episode_is_trained_with_the_rewards_of_its_task() -> None:
    environment = {"type": "verifiers", "processes": 1, **settings()}
    row = build("data", "environment", {"environment": environment})[1]
    agent = build("rollouts", "agent", AGENT)
    try:
        [trajectory] = await agent.run(ScriptedSession(["3", "2"], row=row))
        with pytest.raises(RuntimeError, match=r"TaskError.*KeyError: 'bug'"):
            await agent.run(ScriptedSession(["break"], row=row))
    finally:
        await agent.close()
    assert len(trajectory.turns) == 2
    reported = {name: trajectory.info[name] for name in ("reward", "right", "letters")}
    assert reported == {"reward": 1.0, "right": 1.0, "letters": 1.0}


def test_tasks_are_rows_of_their_prompts() -> None:
    tasks = build("environments", "verifiers", settings(size=2)).tasks()
    assert [(task["id"], task["prompt"]) for task in tasks] == [
        ("0", [{"role": "user", "content": "0 + 1 ="}]),
        ("1", [{"role": "user", "content": "1 + 1 ="}]),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": {}}, "env.taskset needs an id"),
        ({"reward": "judge"}, r"roles \['agent'\], not \['judge'\]"),
        ({"env": {"taskset": {"id": "no_such"}}}, "no_such"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("environments", "verifiers", settings(**change))
