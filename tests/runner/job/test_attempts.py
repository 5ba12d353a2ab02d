"""When the trainer is started again, how often, and after which pause."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlrun.runner.contracts.errors import JobError
from rlrun.runner.host.failures import ProcessFailure
from rlrun.runner.job import attempts
from rlrun.runner.job.attempts import Attempts
from rlrun.runner.job.job import Progress
from rlrun.runner.job.stopping import StopRequest

DIED = ProcessFailure("trainer 0", "died", "", Path("log"))
CRASHED = ProcessFailure("trainer 0", "died", "its process crashed: SIGILL", Path("log"))
RAISED = ProcessFailure("trainer 0", "raised", "ValueError: no", Path("log"))


@dataclass(frozen=True)
class FakeRunningJob:
    inputs: Any
    ranks: Any
    plan: Any = None
    pool: Any = None
    trainer: Any = "the first"


class ScriptedAttempts(Attempts):
    """Attempts with scripted ends: a failure after a number of steps, or None for success."""

    def __init__(self, restarts: int, story: Sequence[tuple[int, ProcessFailure] | None]) -> None:
        self.said: list[str] = []
        self.attempts: list[tuple[bool, Any]] = []
        self.restarted = 0
        self.story = iter(story)
        spec = SimpleNamespace(fault_tolerance=SimpleNamespace(trainer_restarts=restarts))
        parts = FakeRunningJob(
            SimpleNamespace(steps=SimpleNamespace(state=dict)),
            SimpleNamespace(restart=self._restart, processes=()),
        )
        journal = SimpleNamespace(doing=lambda what: None, flush=lambda: asyncio.sleep(0))
        super().__init__(
            SimpleNamespace(spec=spec),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            parts,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            journal=journal,  # type: ignore[arg-type]
            say=self.said.append,
            stop=StopRequest(),
        )

    async def _restart(self) -> None:
        self.restarted += 1

    async def _attempt(self, *, resume: bool) -> None:
        self.attempts.append((resume, self._running.trainer))
        ending = next(self.story)
        if ending is not None:
            steps, failure = ending
            self._first_step, self._progress = 5, Progress(step=5 + steps)
            raise failure


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(attempts, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(attempts, "TrainerGroup", lambda processes: "another")
    return found


async def test_a_run_that_goes_well_is_tried_once(pauses: list[float]) -> None:
    story = ScriptedAttempts(3, [None])
    await story.run(resume=False)
    assert story.attempts == [(False, "the first")]
    assert not pauses


async def test_a_lost_trainer_goes_on_from_the_last_checkpoint_with_other_ranks(pauses: list[float]) -> None:
    story = ScriptedAttempts(3, [(1, DIED), None])
    await story.run(resume=False)
    assert story.attempts == [(False, "the first"), (True, "another")]
    assert story.restarted == 1
    assert story.said == ["trainer 0 died; starting the trainer again (2 restarts left)"]


async def test_pauses_grow_until_a_step_is_done(pauses: list[float]) -> None:
    failures = [(1, DIED), (0, DIED), (0, DIED), (0, DIED), (1, DIED), (0, DIED), None]
    await ScriptedAttempts(9, failures).run(resume=False)
    assert pauses == [0, 1, 2, 4, 0, 1]


async def test_pauses_are_a_minute_at_most(pauses: list[float]) -> None:
    await ScriptedAttempts(9, [*[(0, DIED)] * 9, None]).run(resume=True)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]


async def test_no_restart_is_left(pauses: list[float]) -> None:
    story = ScriptedAttempts(2, [(1, DIED)] * 3)
    with pytest.raises(JobError, match=r"died; no restart is left \(fault_tolerance.trainer_restarts = 2\)"):
        await story.run(resume=False)
    assert story.restarted == 2


async def test_a_crash_that_repeats_is_not_tried_a_third_time(pauses: list[float]) -> None:
    story = ScriptedAttempts(9, [(2, CRASHED), (1, CRASHED), (1, CRASHED), None])
    with pytest.raises(JobError, match="crashed with SIGILL at the same place before"):
        await story.run(resume=False)
    assert story.restarted == 2


async def test_a_trainer_is_not_started_again_for_a_run_that_is_to_stop(pauses: list[float]) -> None:
    story = ScriptedAttempts(9, [(2, DIED), None])
    story._stop.ask()
    with pytest.raises(ProcessFailure):
        await story.run(resume=False)


@pytest.mark.parametrize(
    ("restarts", "failure"),
    [pytest.param(0, DIED, id="no budget"), pytest.param(5, RAISED, id="another try would fail as well")],
)
async def test_a_failure_that_ends_the_job(
    pauses: list[float], restarts: int, failure: ProcessFailure
) -> None:
    story = ScriptedAttempts(restarts, [(1, failure)])
    with pytest.raises(ProcessFailure) as raised:
        await story.run(resume=False)
    assert raised.value is failure
    assert not story.restarted


class RecordingPool:
    """Engines that record the calls to them."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def forget_weights(self) -> None:
        self.told.append("forget")

    async def sleep(self) -> None:
        self.told.append("sleep")


@pytest.mark.parametrize(("shares", "told"), [(False, ["forget"]), (True, ["forget", "sleep"])])
async def test_engines_forget_weights_that_nobody_has(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch, shares: bool, told: list[str]
) -> None:
    monkeypatch.setattr(attempts, "sleeps", lambda spec: shares)
    story, pool = ScriptedAttempts(1, [(0, DIED), None]), RecordingPool()
    story._running = FakeRunningJob(story._running.inputs, story._running.ranks, pool=pool)  # type: ignore[assignment]
    await story.run(resume=False)
    assert pool.told == told
