"""The rollout `environment` with environments in real processes, against sequences built by hand."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.authoring.rollout_testing import ScriptedSession, check_environment
from rlrun.plugins.environments.process import EnvironmentFailure, EnvironmentProcess
from rlrun.plugins.failures import Failure, InfrastructureError, failure_of
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.types import Row, Status, TurnReward
from rlrun.specs.sections.data import EnvironmentSpec
from tests.waiting import wait_until

ENVIRONMENTS = '''
import os
import random
import signal
import sys
import time

import rlrun
from rlrun.plugins.failures import InfrastructureError, PolicyError


@rlrun.environment
class Echo:
    """Repeats what it is told, until it hears `stop`; other words make it do what they say."""

    def __init__(self, *, sure: bool = False):
        print("this line must not garble the answers")
        self.sure = sure

    def tasks(self):
        return [{"id": name, "prompt": f"Say {name}.", "metadata": {"name": name}} for name in ("a", "b")]

    def reset(self, task):
        self.heard = []
        return f"{task.metadata['name']}, sure?" if self.sure else None

    def step(self, action):
        self.heard.append(action)
        match action:
            case "stop":
                return "bye", 1.0, True, {"heard": len(self.heard)}
            case "break":
                raise KeyError("bug")
            case "outage":
                raise InfrastructureError("no board")
            case "wreck":
                raise PolicyError("the board is gone", -1.0)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "roll":
                return str(random.random()), 0.0, False
            case "where":
                return sys.executable, 0.0, False
        return f"you said {action}", 0.25, False


@rlrun.environment
class Duel:
    """Two players say a word each; the later word in the alphabet wins."""

    def tasks(self):
        return [{"id": "0", "prompt": "first, say a word"}]

    def reset(self, task):
        self.words = []

    async def step(self, action):
        self.words.append(action)
        if len(self.words) == 1:
            return "second, say a word", {}, False, {}, 1
        first = 1.0 if self.words[0] > self.words[1] else -1.0
        return None, {0: first, 1: -first}, True, {}


@rlrun.environment
class Broken:
    """Cannot be constructed."""

    def __init__(self):
        raise OSError("no board")

    def tasks(self):
        return []

    def reset(self, task): ...

    def step(self, action): ...
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    path = tmp_path / "worlds.py"
    path.write_text(ENVIRONMENTS)
    return path


def row_of(environment: dict[str, Any], number: int = 0) -> Row:
    row: Row = build("data", "environment", {"environment": {"processes": 1, **environment}})[number]
    return row


async def execute(
    environment: dict[str, Any], *scripts: list[str], max_new_tokens: int = 4096, **params: Any
) -> list[list[Trajectory] | BaseException]:
    """Runs one execution for each script of answers, all at once."""
    row = row_of(environment)
    rollout = build("rollouts", "environment", params)
    sessions = [
        ScriptedSession(
            answers, row=row, prompt=str(row.prompt), id=f"0-{number}", max_new_tokens=max_new_tokens
        )
        for number, answers in enumerate(scripts)
    ]
    try:
        return await asyncio.gather(*map(rollout.run, sessions), return_exceptions=True)
    finally:
        await rollout.close()


def spoken(trajectory: Trajectory) -> str:
    """All tokens of a sample as text."""
    tokens = trajectory.tokens()[: trajectory.sample_length()]
    return "".join(chr(token) for token in tokens)


async def test_tokens_rewards_and_info_of_an_execution(file: Path) -> None:
    [[trajectory]] = await execute({"type": f"{file}:Echo"}, ["hi", "ho", "stop"])
    assert spoken(trajectory) == (
        "user: Say a.\0\nassistant: hi\0"
        "\nuser: you said hi\0\nassistant: ho\0"
        "\nuser: you said ho\0\nassistant: stop\0"
    )
    _, log_probs, mask, _ = trajectory.response()
    assert [int(prob) for prob, own in zip(log_probs, mask, strict=True) if own] == (
        [-1] * len("hi\0") + [-2] * len("ho\0") + [-3] * len("stop\0")
    )
    assert trajectory.status is Status.COMPLETED
    assert trajectory.info == {"heard": 3, "reward": 1.5, "turns": 3}
    given = len("\nuser: you said hi\0\nassistant: ")
    ends = [3, 6 + given, 11 + 2 * given]
    assert trajectory.rewarded_turns() == tuple(map(TurnReward, ends, [0.25, 0.25, 1.0]))


async def test_what_an_environment_says_has_the_weight_of_the_spec(file: Path) -> None:
    [[trajectory]] = await execute({"type": f"{file}:Echo"}, ["hi", "stop"], cross_entropy=0.5)
    said = len("\nuser: you said hi\0\nassistant: ")
    assert trajectory.cross_entropy().tolist() == [0] * len("hi\0") + [0.5] * said + [0] * len("stop\0")


async def test_reset_may_give_the_first_messages(file: Path) -> None:
    [[trajectory]] = await execute({"type": f"{file}:Echo", "sure": True}, ["stop"])
    assert spoken(trajectory) == "user: a, sure?\0\nassistant: stop\0"


@pytest.mark.parametrize(
    ("answers", "limits", "turns"),
    [
        pytest.param(["on"], {"max_turns": 3}, 3, id="turns_are_used_up"),
        pytest.param(["on", "on…"], {}, 2, id="an_answer_is_cut_off"),
        pytest.param(["on"], {"max_new_tokens": 30}, 1, id="no_room_for_the_observation"),
    ],
)
async def test_an_execution_that_its_environment_did_not_end_is_truncated(
    file: Path, answers: list[str], limits: dict[str, int], turns: int
) -> None:
    [[trajectory]] = await execute({"type": f"{file}:Echo"}, answers, **limits)
    assert trajectory.status is Status.TRUNCATED
    assert trajectory.info["turns"] == turns
    rewarded = turns - ("on…" in answers)
    assert trajectory.turn_rewards == [0.25] * rewarded + [0.0] * (turns - rewarded)
    assert trajectory.info["reward"] == 0.25 * rewarded


async def test_each_player_has_a_sample_with_its_own_reward(file: Path) -> None:
    [trajectories] = await execute({"type": f"{file}:Duel"}, ["ant", "bee"])
    assert [spoken(trajectory) for trajectory in trajectories] == [
        "user: first, say a word\0\nassistant: ant\0",
        "user: second, say a word\0\nassistant: bee\0",
    ]
    assert [(one.info["player"], one.info["reward"]) for one in trajectories] == [(0, -1.0), (1, 1.0)]
    assert [one.turn_rewards for one in trajectories] == [[-1.0], [1.0]]


async def test_random_numbers_belong_to_an_execution_whatever_runs_beside_it(file: Path) -> None:
    world = {"type": f"{file}:Echo"}
    [[alone]] = await execute(world, ["roll", "roll", "stop"])
    [[first], [second]] = await execute(world, ["roll", "roll", "stop"], ["on", "roll", "roll", "stop"])
    assert spoken(alone) == spoken(first)
    assert spoken(first).split("user: ")[2] == spoken(second).split("user: ")[3]


@pytest.mark.parametrize(
    ("word", "failure", "message"),
    [
        pytest.param("break", Failure.ERROR, "Echo: KeyError: 'bug'", id="raises"),
        pytest.param("outage", Failure.SERVICE, "Echo: InfrastructureError: no board", id="infrastructure"),
        pytest.param("die", Failure.PREEMPTED, "Echo: its process died", id="dies"),
        pytest.param("hang", Failure.ERROR, r"step took longer than 0.5 s \(step_timeout\)", id="hangs"),
    ],
)
async def test_a_failure_fails_its_execution_and_the_next_one_runs(
    file: Path, word: str, failure: Failure, message: str
) -> None:
    row, rollout = row_of({"type": f"{file}:Echo"}), build("rollouts", "environment", {"step_timeout": 0.5})
    try:
        rollout.params = rollout.params.model_copy(update={"step_timeout": 60.0})
        await rollout.run(ScriptedSession(["stop"], row=row))  # it runs before the short deadline counts
        rollout.params = rollout.params.model_copy(update={"step_timeout": 0.5 if word == "hang" else 60.0})
        with pytest.raises((EnvironmentFailure, InfrastructureError), match=message) as raised:
            await rollout.run(ScriptedSession([word], row=row, id="0-1"))
        assert failure_of(raised.value) is failure
        rollout.params = rollout.params.model_copy(update={"step_timeout": 60.0})
        [trajectory] = await rollout.run(ScriptedSession(["stop"], row=row, id="0-2"))
        assert trajectory.info["reward"] == 1.0
    finally:
        await rollout.close()


async def test_an_error_of_the_policy_ends_the_execution_with_its_reward(file: Path) -> None:
    [[trajectory]] = await execute({"type": f"{file}:Echo"}, ["hi", "wreck"])
    assert trajectory.status is Status.COMPLETED
    assert trajectory.turn_rewards == [0.25, -1.0]
    assert trajectory.info["policy_error"] == 1


async def test_a_process_that_is_killed_while_the_next_one_starts_takes_nothing_with_it(file: Path) -> None:
    process = EnvironmentProcess(EnvironmentSpec(type=f"{file}:Echo"))
    task = {
        "id": "0-0",
        "messages": [],
        "label": None,
        "metadata": {},
        "seed": 1,
        "base_url": "",
        "api_key": "",
    }
    try:
        await process.call("reset", 60.0, episode="0-0", task=task)
        first = process.pid
        await asyncio.gather(process.stop(), process.call("reset", 60.0, episode="0-1", task=task))
        assert process.pid not in (None, first)
        turn = await process.call("step", 60.0, episode="0-1", action="hi")
        assert turn["rewards"] == {"": 0.25}
    finally:
        await process.stop()


async def test_no_process_is_left_behind(file: Path) -> None:
    row, rollout = row_of({"type": f"{file}:Echo"}), build("rollouts", "environment", {})
    await rollout.run(ScriptedSession(["stop"], row=row))
    [[process]] = rollout._pool._processes.values()
    pid = process.pid
    os.kill(pid, signal.SIGCONT)
    await rollout.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the process's end")


def test_an_environment_that_cannot_be_constructed_is_named_with_its_cause(file: Path) -> None:
    with pytest.raises(PluginError, match=r"Broken: OSError: no board"):
        row_of({"type": f"{file}:Broken"})


def test_an_interpreter_that_does_not_exist_is_named(file: Path) -> None:
    with pytest.raises(PluginError, match=r"no interpreter /no/such/python; correct `python`"):
        row_of({"type": f"{file}:Echo", "python": "/no/such/python"})


async def test_a_row_of_another_data_source_is_refused() -> None:
    rollout = build("rollouts", "environment", {})
    with pytest.raises(ValueError, match=r'set data.type = "environment"'):
        await rollout.run(ScriptedSession(["hi"], row=Row("0", "hi", metadata={"environment": "echo"})))


def test_the_built_in_game_keeps_the_contract() -> None:
    executed = check_environment("guess_number", {"high": 3, "guesses": 2}, ["2", "no number", "1"])
    assert [[one.info["solved"] for one in trajectories] for trajectories in executed[::2]] == [[0], [1], [0]]
    assert replace(row_of({"type": "guess_number"}, 8)).label == 9


@pytest.mark.skipif(sys.platform != "linux", reason="a virtual environment's folder is Linux's here")
async def test_an_interpreter_without_rlrun_runs_an_environment(file: Path, tmp_path: Path) -> None:
    python = python_with_pydantic_only(tmp_path)
    [[trajectory]] = await execute({"type": f"{file}:Echo", "python": str(python)}, ["where", "stop"])
    assert str(python) in spoken(trajectory)


def python_with_pydantic_only(folder: Path) -> Path:
    """A virtual environment that sees pydantic and what pydantic needs, and nothing else of this one."""
    import venv

    import pydantic

    venv.create(folder / "venv", symlinks=True)
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in ("annotated_types", "pydantic", "pydantic_core", "typing_extensions.py", "typing_inspection"):
        (site / name).symlink_to(Path(pydantic.__file__).parent.parent / name)
    return folder / "venv" / "bin" / "python"
