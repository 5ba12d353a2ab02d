"""The agent `environment`: environments that ask the policy themselves, in real processes."""

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlrun.plugins.authoring.rollout_testing import ScriptedSession
from rlrun.plugins.failures import Failure, InfrastructureError, failure_of
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.registry import build
from tests.waiting import wait_for_ends, wait_until

ENVIRONMENTS = """
import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import rlrun
from rlrun.plugins.failures import InfrastructureError, PolicyError


def ask(task):
    headers = {"Authorization": "Bearer " + task.api_key, "Content-Type": "application/json"}
    body = json.dumps({"model": "policy", "messages": task.messages}).encode()
    request = urllib.request.Request(task.base_url + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


@rlrun.environment
class Asks:
    def __init__(self, *, folder: str = str(Path(__file__).parent)):
        self.folder, self.running, self.most = Path(folder), 0, 0

    def tasks(self):
        return [{"id": "0", "prompt": "begin", "metadata": {"name": "first"}}]

    async def run(self, task):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            said = await asyncio.to_thread(ask, task)
            match said:
                case "outage":
                    raise InfrastructureError("no board")
                case "wreck":
                    raise PolicyError("the board is gone", -1.0)
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "daemon":
                    child = subprocess.Popen(["sleep", "6000"], start_new_session=True)
                    return {"reward": 0.0, "child": child.pid}
                case "wait":
                    (self.folder / "waits").touch()
                    await asyncio.sleep(6000)
            return {"reward": 1.0, "said": said, "task": task.metadata, "most": self.most}
        except asyncio.CancelledError:
            (self.folder / "cancelled").touch()
            raise
        finally:
            self.running -= 1

    def close(self):
        (self.folder / "closed").touch()


@rlrun.environment
class Blocks:
    def tasks(self):
        return [{"id": "0", "prompt": "begin"}]

    def run(self, task):
        return {"reward": 0.5, "said": ask(task)}
"""
AGENT = {"agent": {"type": "environment"}}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    path = tmp_path / "asking.py"
    path.write_text(ENVIRONMENTS)
    return path


def row_of(file: Path, name: str = "Asks", **params: Any) -> Any:
    environment = {"type": f"{file}:{name}", "processes": 1, **params}
    return build("data", "environment", {"environment": environment})[0]


async def run(answer: str, row: Any) -> Trajectory:
    rollout = build("rollouts", "agent", AGENT)
    try:
        [trajectory] = await rollout.run(ScriptedSession([answer], row=row))
    finally:
        await rollout.close()
    return trajectory  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "reward"), [("Asks", 1.0), ("Blocks", 0.5)])
async def test_an_environment_asks_the_policy_and_says_the_reward(
    name: str, reward: float, file: Path
) -> None:
    trajectory = await run("4", row_of(file, name))
    assert (trajectory.info["reward"], trajectory.info["said"]) == (reward, "4")
    assert trajectory.info.get("task", {"name": "first"}) == {"name": "first"}
    assert len(trajectory.turns) == 1


async def test_failures_have_their_types(file: Path) -> None:
    row = row_of(file)
    with pytest.raises(InfrastructureError, match="no board"):
        await run("outage", row)
    wrecked = await run("wreck", row)
    assert (wrecked.info["reward"], wrecked.info["policy_error"]) == (-1.0, 1)
    with pytest.raises(InfrastructureError, match="its process died") as died:
        await run("die", row)
    assert failure_of(died.value) is Failure.PREEMPTED


async def test_one_instance_runs_executions_beside_each_other_until_they_are_cancelled(
    file: Path, tmp_path: Path
) -> None:
    row, rollout = row_of(file, folder=str(tmp_path)), build("rollouts", "agent", AGENT)
    waiting = asyncio.create_task(rollout.run(ScriptedSession(["wait"], row=row, id="0-0")))
    await asyncio.to_thread(wait_until, (tmp_path / "waits").exists, "the policy's answer")
    [trajectory] = await rollout.run(ScriptedSession(["4"], row=row, id="0-1"))
    assert trajectory.info["most"] == 2
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await rollout.close()
    wait_until((tmp_path / "cancelled").exists, "the end of the execution")
    assert (tmp_path / "closed").exists(), "environments are closed before their process ends"


async def test_programs_that_an_environment_leaves_behind_end_with_its_process(file: Path) -> None:
    trajectory = await run("daemon", row_of(file))
    child = int(trajectory.info["child"])
    wait_for_ends([psutil.Process(child)] if psutil.pid_exists(child) else [])
