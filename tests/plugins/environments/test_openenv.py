"""The adapter of OpenEnv, against a stand-in of its client and, where there is one, against its real server.

RLRUN_OPENENV_PYTHON=/opt/openenv/bin/python pytest tests/plugins/environments/test_openenv.py
"""

import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.authoring.rollout_testing import ScriptedSession
from rlrun.plugins.failures import InfrastructureError
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.registry import build

INTERPRETER = os.environ.get("RLRUN_OPENENV_PYTHON")
"""An interpreter with OpenEnv, whose server is then tested as well."""
STAND_IN = '''
"""Answers as OpenEnv 0.10's GenericEnvClient does for the server below."""

from types import SimpleNamespace


class GenericEnvClient:
    def __init__(self, base_url):
        self.base_url = base_url

    async def reset(self, seed):
        if "9" in self.base_url:
            raise ConnectionError("refused")
        self.number, self.left = seed, 3
        return SimpleNamespace(observation={"hint": "Guess."}, reward=0.0, done=False)

    async def step(self, action):
        if not str(action.get("number")).isdigit():
            raise RuntimeError("Server error: Invalid message (code: VALIDATION_ERROR)")
        self.left -= 1
        right = int(action["number"]) == self.number
        hint = "higher" if int(action["number"]) < self.number else "lower"
        return SimpleNamespace(observation={"hint": hint}, reward=float(right), done=right or not self.left)

    async def close(self):
        pass
'''
SERVER = """
import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Guess(Action):
    number: int

class Hint(Observation):
    hint: str

class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number, self.left = seed, 3
        return Hint(hint="Guess.", reward=0.0, done=False)

    def step(self, action, timeout_s=None, **kwargs):
        self.left -= 1
        right = action.number == self.number
        hint = "higher" if action.number < self.number else "lower"
        return Hint(hint=hint, reward=float(right), done=right or not self.left)

listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
app = create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=16)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
"""


@pytest.fixture(params=["stand-in", "real"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The keys of an environment that reach a server whose number to guess is the seed."""
    if request.param == "stand-in":
        (tmp_path / "openenv.py").write_text(textwrap.dedent(STAND_IN))
        monkeypatch.syspath_prepend(str(tmp_path))
        yield {"base_url": "http://stand-in"}
        return
    if INTERPRETER is None:
        pytest.skip("RLRUN_OPENENV_PYTHON names no interpreter with OpenEnv")
    with subprocess.Popen([INTERPRETER, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            yield {"base_url": f"http://127.0.0.1:{port}", "python": INTERPRETER}
        finally:
            process.kill()


async def play(answers: list[str], keys: dict[str, Any]) -> Trajectory:
    """Returns the policy's conversation in the task whose number is 4."""
    shown = {"prompt": "Find it.", "resets": [{"seed": 4}], "observation": "hint", "action": "number"}
    environment = {"type": "openenv", "processes": 1, **shown, **keys}
    [row] = build("data", "environment", {"environment": environment})
    rollout = build("rollouts", "environment", {})
    try:
        [trajectory] = await rollout.run(ScriptedSession(answers, row=row))
    finally:
        await rollout.close()
    return trajectory


def said(trajectory: Trajectory) -> str:
    tokens, _, _, _ = trajectory.response()
    return "".join(map(chr, [*trajectory.prompt, *tokens]))


async def test_an_episode_of_the_server_is_an_execution(server: dict[str, Any]) -> None:
    trajectory = await play(["2", "seven", "4"], server)
    assert trajectory.turn_rewards == [0.0, 0.0, 1.0]
    assert (trajectory.info["reward"], trajectory.info["invalid"]) == (1.0, 1)
    text = said(trajectory)
    assert "Find it.\n\nGuess." in text and "higher" in text and "That is not an action" in text


async def test_whole_observations_and_actions_are_json(server: dict[str, Any]) -> None:
    answers = ["[4]", '{"number": 3}', '{"number": 4}']
    trajectory = await play(answers, {**server, "observation": None, "action": None})
    assert (trajectory.info["reward"], trajectory.info["invalid"]) == (1.0, 1)
    assert '"hint": "higher"' in said(trajectory)


async def test_a_server_that_is_gone_is_a_failure_of_the_infrastructure(server: dict[str, Any]) -> None:
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9"):
        await play(["4"], {**server, "base_url": "http://127.0.0.1:9"})
