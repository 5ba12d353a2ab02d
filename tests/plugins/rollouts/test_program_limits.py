"""Programs of agents that exceed their limits, as real processes: they end, and the policy answers for it."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlrun.plugins.authoring.rollout_testing import ScriptedSession
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.registry import build
from rlrun.plugins.rewards.code.jail import memory
from rlrun.plugins.rollouts.agent import program_watch
from rlrun.plugins.rollouts.agent.program_limits import ProgramLimits
from rlrun.plugins.rollouts.agent.program_watch import HostProcess, HostProcesses, WatchedProgram
from rlrun.plugins.types import Row, Status
from tests.plugins.rollouts.test_agent import HI, Client, run
from tests.waiting import wait_for_ends

ASK = """
import json, os, subprocess, sys, urllib.request

task = json.load(sys.stdin)

def ask():
    body = json.dumps({"messages": task["messages"]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))

def child(program, **options):
    return subprocess.Popen([sys.executable, "-c", program], **options)
"""
WAIT = "import time; time.sleep(6000)"


async def run_program(program: str, **limits: int) -> list[Trajectory]:
    command = [sys.executable, "-c", ASK + program]
    rollout = build("rollouts", "agent", {"command": command, "limits": limits})
    try:
        return await rollout.run(ScriptedSession(["4"], row=Row("0", [HI])))
    finally:
        await rollout.close()


@pytest.mark.parametrize(
    ("program", "limits", "problem"),
    [
        pytest.param(
            f"child('x = bytearray(40 << 20); {WAIT}'); child('x = bytearray(40 << 20); {WAIT}').wait()",
            {"memory": 64},
            "used more than limits.memory = 64 MiB",
            id="memory of all processes together",
        ),
        pytest.param(
            f"[child('{WAIT}', start_new_session=True) for _ in range(6)][0].wait()",
            {"processes": 4},
            "processes, and limits.processes = 4",
            id="processes that begin sessions",
        ),
        pytest.param(
            f"os.write(1, bytes(600_000)); os.write(2, bytes(600_000)); {WAIT}",
            {"output": 1},
            "printed more than limits.output = 1 MiB",
            id="output",
        ),
        pytest.param(
            "os.mkdir('many'); [open(f'many/{n}', 'wb').write(bytes(1 << 19)) for n in range(3)]; " + WAIT,
            {"disk": 1},
            "had more than limits.disk = 1 MiB of files in its folder",
            id="disk",
        ),
        pytest.param(
            "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); "
            "open('big', 'wb').write(bytes(2 << 20))",
            {"file": 1},
            "wrote a file larger than limits.file allows",
            id="file",
        ),
    ],
)
async def test_a_program_over_a_limit_is_an_error_of_the_policy(
    program: str, limits: dict[str, int], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    [one] = await run_program(f"ask()\n{program}", **limits)
    assert one.status is Status.COMPLETED
    expected = {"reward": 0.0, "policy_error": 1, "over_limit": 1, "samples": 1, "trained_share": 1.0}
    assert one.info == expected
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert problem in record.getMessage()


async def test_all_processes_of_a_program_end_with_it_also_those_in_other_sessions(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"""
first = child("{WAIT}", start_new_session=True)
second = child("{WAIT}")
open({str(pids)!r}, "w").write(f"{{first.pid}} {{second.pid}}")
ask()
[os.write(1, bytes(1 << 20)) for _ in range(2)]
{WAIT}
"""
    await run_program(program, output=1)
    started = [int(pid) for pid in pids.read_text().split()]
    wait_for_ends([psutil.Process(pid) for pid in started if psutil.pid_exists(pid)])


async def test_a_program_that_exceeds_a_limit_before_the_policy_answered_names_the_limit() -> None:
    with pytest.raises(RuntimeError, match=r"limits\.output = 1 MiB, before the policy answered: raise"):
        await run_program(f"os.write(1, bytes(2 << 20)); {WAIT}", output=1)


def test_a_program_is_its_sessions_and_their_children_also_without_their_parents() -> None:
    program = WatchedProgram(10, ProgramLimits(), ())

    def members(*processes: tuple[int, int, int]) -> list[int]:
        return sorted(program.members(HostProcesses(HostProcess(*one) for one in processes)))

    system, other = (1, 0, 1), (20, 1, 20)
    assert members(system, (10, 1, 10), (11, 10, 10), (12, 11, 12), (13, 12, 12), other) == [10, 11, 12, 13]
    assert members(system, (13, 1, 12), (14, 13, 14), other) == [13, 14]
    assert program.sessions == {12, 14}
    assert members(system, other, (12, 1, 30)) == []
    assert program.sessions == set()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"processes": 512, "output": 64 << 20, "uses_more_memory": False}, ""),
        ({"processes": 513, "output": 0, "uses_more_memory": False}, "had 513 processes, and limits.process"),
        ({"processes": 1, "output": (64 << 20) + 1, "uses_more_memory": False}, "limits.output = 64 MiB"),
        ({"processes": 1, "output": 0, "uses_more_memory": True}, "limits.memory = 4096 MiB"),
    ],
)
def test_the_first_limit_that_is_exceeded_is_named(values: dict[str, Any], problem: str) -> None:
    assert problem in ProgramLimits().exceeded(disk=0, **values)
    assert bool(ProgramLimits().exceeded(disk=0, **values)) == bool(problem)


@pytest.mark.parametrize("fails", [False, True])
async def test_an_execution_that_asks_for_more_turns_is_truncated(fails: bool) -> None:
    async def act(client: Client) -> dict[str, float]:
        first = await client.say(HI)
        await client.say(HI, first, HI)
        status, answer = await client.post({"messages": [HI, first, HI, first, HI]})
        assert (status, answer["error"]["code"]) == (400, "max_turns_exceeded")
        assert (
            answer["error"]["message"] == "this execution has had its 2 answers (rollout.function.max_turns)"
        )
        if fails:
            raise OSError("no answer")
        return {"reward": 0.5}

    [one], _ = await run(act, ["four", "yes"], max_turns=2)
    assert one.status is Status.TRUNCATED
    noted = {"reward": 0.0, "policy_error": 1, "over_limit": 1} if fails else {"reward": 0.5}
    assert one.info == noted | {"samples": 1, "trained_share": 1.0}


def test_limits_are_for_a_command() -> None:
    with pytest.raises(ValueError, match="limits is for a command; an agent's class runs in rlrun's own"):
        build("rollouts", "agent", {"agent": {"type": "solve_and_select"}, "limits": {"memory": 1}})


async def test_a_daemon_that_left_its_program_at_once_ends_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open({str(pid)!r}, "w").write(str(os.getpid()))
        {WAIT}
    os._exit(0)
os.wait()
ask()
while not os.path.exists({str(pid)!r}) or not open({str(pid)!r}).read():
    pass
print('{{"reward": 1.0}}')
"""
    [one] = await run_program(program)
    assert one.info["reward"] == 1.0
    wait_for_ends([psutil.Process(found) for found in [int(pid.read_text())] if psutil.pid_exists(found)])


async def test_a_daemon_that_never_reads_a_long_task_does_not_hold_up_its_execution() -> None:
    program = f"child({WAIT!r}, start_new_session=True); ask(); print('{{\"reward\": 1.0}}')"
    metadata = {"text": "x" * (1 << 20)}
    unread = ASK.replace("json.load(sys.stdin)", '{"messages": [{"role": "user", "content": "Hi"}]}')
    rollout = build("rollouts", "agent", {"command": [sys.executable, "-c", unread + program]})
    [one] = await run_session(rollout, metadata)
    assert one.info["reward"] == 1.0


async def run_session(rollout: Any, metadata: dict[str, Any]) -> list[Trajectory]:
    try:
        return await rollout.run(ScriptedSession(["4"], row=Row("0", [HI], metadata=metadata)))
    finally:
        await rollout.close()


async def test_the_last_line_may_be_long() -> None:
    [one] = await run_program(
        "ask(); print('first'); print(json.dumps({'note': 'x' * 200_000, 'reward': 1.0}))"
    )
    assert one.info["reward"] == 1.0


def test_processes_of_another_user_keep_no_other_from_being_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    def kill(process: int, number: int) -> None:
        if process == 10:
            raise PermissionError
        killed.append(process)

    monkeypatch.setattr(program_watch.os, "kill", kill)
    monkeypatch.setattr(program_watch, "together_use_more_than", lambda limit, members: True)
    program = WatchedProgram(10, ProgramLimits(), ())
    program.check(HostProcesses([HostProcess(10, 1, 10), HostProcess(11, 10, 10)]))
    assert killed == [11]


def test_a_process_that_forbids_to_read_its_maps_does_not_hide_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(process: int) -> int:
        raise PermissionError

    monkeypatch.setattr(memory, "_exact", refuse)
    assert memory.together_use_more_than(1 << 20, [os.getpid()])
    assert not memory.together_use_more_than(1 << 40, [os.getpid()])
