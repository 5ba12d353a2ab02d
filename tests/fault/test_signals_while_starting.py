"""Each phase of a start × each signal and death: a bounded end, a state that says why, no process left.

phase     what the launch has just done                   victims
claimed   made the run's folder                           driver
GCS       started Ray's first process                     driver, GCS
raylet    started the raylet                              driver, GCS, raylet
agent     the raylet has started Ray's agents             driver, GCS, raylet, agents
process   the first process of the job has begun its log  driver, GCS, raylet
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest

from tests.integration.jobs import ROLLOUT_ONLY, Jobs, Running

GONE_SECONDS = 30.0
"""For processes to disappear, on a busy machine; they take a fraction of a second on an idle one."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Case:
    """One death or signal."""

    phase: str
    victim: str
    number: signal.Signals = signal.SIGKILL

    def __str__(self) -> str:
        return f"{self.phase}-{self.victim}-{self.number.name}".replace(" ", "_").replace("/", "_")


def processes(running: Running, word: str) -> list[psutil.Process]:
    """The processes below the driver whose command has a word; none when the driver has ended."""
    matches: list[psutil.Process] = []
    try:
        below = running.children()
    except psutil.NoSuchProcess:
        return matches
    for process in below:
        try:
            if process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                matches.append(process)
        except psutil.NoSuchProcess:
            continue
    return matches


VICTIMS = {
    "GCS": "gcs/gcs_server",
    "raylet": "raylet/raylet",
    "dashboard agent": "dashboard/agent.py",
    "environment agent": "runtime_env/agent/main.py",
}
PHASES: dict[str, Callable[[Running], bool]] = {
    "claimed": lambda running: running.folder.path.exists(),
    "GCS": lambda running: bool(processes(running, VICTIMS["GCS"])),
    "raylet": lambda running: bool(processes(running, VICTIMS["raylet"])),
    "agent": lambda running: bool(processes(running, VICTIMS["dashboard agent"])),
    "process": lambda running: (running.folder.logs / "engine-0.log").exists(),
}
FAST = [
    Case("GCS", "driver", signal.SIGTERM),
    Case("raylet", "GCS"),
    Case("agent", "driver"),
]
MATRIX = [
    *(Case(phase, "driver", number) for phase in PHASES for number in (*SIGNALS, signal.SIGKILL)),
    *(Case(phase, "GCS") for phase in ("GCS", "raylet", "agent", "process")),
    *(Case(phase, "raylet") for phase in ("raylet", "agent", "process")),
    Case("agent", "dashboard agent"),
    Case("agent", "environment agent"),
]


def strike(jobs: Jobs, case: Case) -> None:
    running = jobs.start(str(case), **ROLLOUT_ONLY, trainer__steps=3)
    running.until(lambda: PHASES[case.phase](running), case.phase)
    seen = set(running.children())
    if case.victim == "driver":
        running.signal(case.number)
    else:
        running.until(lambda: bool(processes(running, VICTIMS[case.victim])), case.victim)
        seen |= set(running.children())
        for process in processes(running, VICTIMS[case.victim]):
            process.send_signal(case.number)
    ended = running.wait()
    _, left = psutil.wait_procs(seen, timeout=GONE_SECONDS)
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
    state = ended.folder.current_state()
    if case.victim != "driver":
        # Ray is started again where that still can be done; otherwise the cause is named
        assert (ended.code, state["status"]) in ((0, "done"), (3, "failed"), (69, "failed")), ended.output
        if ended.code:
            assert "died: " in state["error"], ended.output
    elif case.number == signal.SIGKILL:
        assert (ended.code, state.get("status", "died")) == (-signal.SIGKILL, "died")
    else:
        assert (ended.code, state["status"]) == (130, "interrupted"), ended.output
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("case", FAST, ids=str)
def test_a_launch_ends_at_once_and_says_why(jobs: Jobs, case: Case) -> None:
    strike(jobs, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in MATRIX if case not in FAST], ids=str)
def test_every_phase_and_every_death(jobs: Jobs, case: Case) -> None:
    strike(jobs, case)
