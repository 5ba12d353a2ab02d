"""A run that is asked to stop: what it gives up, what it finishes, what it saves, and what it says."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.checkpoints.folder import newest_step
from rlrun.runner.checkpoints.reading import read_driver
from rlrun.runner.checkpoints.saving import Checkpoints, trainer_folder
from rlrun.runner.job.device_sharing import SharedDevices
from rlrun.runner.job.job import Job, Progress, RolloutJob
from rlrun.runner.job.loop import run
from rlrun.runner.job.rollout_only import generate
from rlrun.runner.job.stopping import Moment, StopRequest, announcement, resume_hint
from tests.runner.job.test_loop import FakeEvaluation, MemoryLog, job

STEPS = 4


GIVEN_UP = ("run", "next", "compute")
"""Methods that a job which is asked to stop does not wait for."""


def stops_at(one: Job, owner: Any, method: str, call: int) -> None:
    """Ask the job to stop in the `call`-th call of a method; one that is given up hangs from then on."""
    original: Callable[..., Awaitable[Any]] = getattr(owner, method)
    calls = 0

    async def stopping(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            one.stop.ask()
            if method in GIVEN_UP:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        return await original(*args, **kwargs)

    setattr(owner, method, stopping)


async def resumed(folder: Path, one: Job) -> Job:
    """The same job in another launch, from its newest checkpoint to its end."""
    step = newest_step(folder)
    if step is None:
        await run(one, Progress())
        return one
    checkpoint = folder / f"step-{step}"
    driver = read_driver(checkpoint)
    await one.trainer.load(trainer_folder(checkpoint))
    await one.source.restore(driver["data"])
    await run(one, Progress(**driver["progress"]))
    return one


def lines(*jobs: Job) -> list[tuple[int, dict[str, float]]]:
    """Every step's metrics without what depends on the clock."""
    return [
        (step, {name: value for name, value in metrics.items() if not name.startswith("perf/")})
        for one in jobs
        for step, metrics in one.journal.lines  # type: ignore[attr-defined]
    ]


def small_job(folder: Path, **changes: Any) -> Job:
    one = job(folder, steps=STEPS, optimizer_steps=2, **changes)
    evaluation = FakeEvaluation(one.trainer.events)  # type: ignore[attr-defined]
    return replace(one, evaluation=evaluation, eval_interval=1, recompute_old=True)


@pytest.mark.parametrize(
    ("part", "method", "call", "saved"),
    [
        pytest.param("evaluation", "run", 1, None, id="evaluation before training"),
        pytest.param("source", "next", 1, None, id="first rollout"),
        pytest.param("source", "next", 3, 2, id="rollout"),
        pytest.param("trainer", "compute", 3, 2, id="log-probs"),
        pytest.param("trainer", "train", 1, 1, id="first training"),
        pytest.param("trainer", "train", 3, 3, id="training"),
        pytest.param("trainer", "train", STEPS, STEPS, id="last training"),
        pytest.param("trainer", "write_weights", 3, 2, id="writing weights"),
        pytest.param("engines", "update_weights", 3, 2, id="weight sync"),
        pytest.param("evaluation", "run", 3, 2, id="evaluation"),
        pytest.param("evaluation", "run", STEPS + 1, STEPS, id="last evaluation"),
    ],
)
async def test_a_run_that_is_stopped_and_resumed_is_the_run_that_was_not(
    tmp_path: Path, part: str, method: str, call: int, saved: int | None
) -> None:
    whole = small_job(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    await run(whole, Progress())
    first = small_job(tmp_path)
    stops_at(first, getattr(first, part), method, call)
    await asyncio.wait_for(run(first, Progress()), 30)
    assert newest_step(tmp_path) == saved
    second = await resumed(tmp_path, small_job(tmp_path))
    kept = [line for line in lines(first) if line[0] <= (saved or -1)]
    assert kept + lines(second) == lines(whole)
    assert second.trainer.logit == whole.trainer.logit  # type: ignore[attr-defined]


async def test_what_a_stopped_run_does_with_its_last_step(tmp_path: Path) -> None:
    one = small_job(tmp_path)
    stops_at(one, one.trainer, "train", 2)
    await run(one, Progress())
    assert one.trainer.events == [  # type: ignore[attr-defined]
        *("weights 0", "eval", "evaluated 0", "metrics 0"),
        *("policy log_probs", "train policy", "weights 1", "samples 1", "eval", "evaluated 1", "metrics 1"),
        # the evaluation of step 2 waits for the resumed run
        *("policy log_probs", "train policy", "samples 2", "flush", "save"),
    ]
    progress = read_driver(tmp_path / "step-2")["progress"]
    assert progress["unevaluated"]["train/loss"] == pytest.approx(one.trainer.logit * -1)  # type: ignore


async def test_a_sleeping_trainer_is_woken_to_save(tmp_path: Path) -> None:
    one = replace(small_job(tmp_path), evaluation=None)
    memory = MemoryLog(one.trainer.events)  # type: ignore[attr-defined]
    stops_at(one, one.source, "next", 2)  # engines have the devices
    await run(replace(one, devices=SharedDevices(memory, memory)), Progress())
    assert one.trainer.events[-4:] == ["metrics 1", "flush", "engines sleep", "save"]  # type: ignore


async def test_a_step_that_is_saved_already_is_not_saved_again(tmp_path: Path) -> None:
    one = replace(small_job(tmp_path), checkpoint_interval=2, evaluation=None)
    stops_at(one, one.source, "next", 3)
    await run(one, Progress())
    assert one.trainer.events.count("save") == 1  # type: ignore[attr-defined]
    assert newest_step(tmp_path) == 2


async def test_a_checkpoint_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, asynchronous=True)
    one = replace(small_job(tmp_path), checkpoints=checkpoints, evaluation=None)
    stops_at(one, one.source, "next", 3)
    running = asyncio.create_task(run(one, Progress()))
    await one.trainer.begun.wait()  # type: ignore[attr-defined]
    assert newest_step(tmp_path) is None
    one.trainer.written.set()  # type: ignore[attr-defined]
    await running
    assert newest_step(tmp_path) == 2


async def test_a_run_that_only_generates_saves_its_place(tmp_path: Path) -> None:
    parts = small_job(tmp_path)
    one = RolloutJob(
        steps=STEPS,
        source=parts.source,
        journal=parts.journal,
        checkpoints=parts.checkpoints,
        stop=parts.stop,
    )
    stops_at(parts, parts.source, "next", 3)
    await generate(one, Progress())
    driver = read_driver(tmp_path / "step-2")
    assert driver["progress"]["step"] == 2
    assert driver["data"]["place"] == 8


async def test_progress_is_saved_as_json() -> None:
    progress = Progress(step=3, source_state=lambda: {"place": 7})
    assert json.loads(json.dumps(progress.driver_state()))["data"] == {"place": 7}
    assert Progress(**progress.driver_state()["progress"]) == progress


@pytest.mark.parametrize(
    ("moment", "step", "says"),
    [
        pytest.param("outside", 0, "stopping; once more to stop at once", id="start, restart, export"),
        pytest.param("preparing", 1, "cancelling step 1 (at most 45 s", id="first step"),
        pytest.param("preparing", 8, "cancelling step 8 and saving step 7 (at most 45 s", id="rollout"),
        pytest.param("committed", 8, "finishing step 8 and saving (at most 45 s", id="training"),
        pytest.param("evaluating", 0, "postponing the evaluation (at most 45 s", id="evaluation before"),
        pytest.param("evaluating", 7, "postponing the evaluation and saving step 7 (", id="evaluation"),
    ],
)
def test_what_the_user_is_told_at_first(moment: Moment, step: int, says: str) -> None:
    said = announcement(moment, step, 45.0)
    assert says in said
    assert "once more to stop at once" in said


@pytest.mark.parametrize(
    ("finished", "saved", "says"),
    [
        pytest.param(
            0,
            None,
            "nothing was saved (no step was finished): rlrun resume a starts from the beginning",
            id="start",
        ),
        pytest.param(
            7,
            None,
            "nothing was saved (steps 1 to 7 are lost): rlrun resume a starts from the beginning",
            id="lost",
        ),
        pytest.param(7, 7, "rlrun resume a continues from step 7 (checkpoints/step-7)", id="saved"),
        pytest.param(7, 8, "rlrun resume a continues from step 8", id="saved, its evaluation waits"),
        pytest.param(7, 4, "steps after 4 were not saved: rlrun resume a continues from step 4", id="older"),
    ],
)
def test_what_the_user_is_told_at_the_end(finished: int, saved: int | None, says: str) -> None:
    assert resume_hint(finished, saved, "a").startswith(says)


async def test_work_that_ends_is_not_given_up() -> None:
    stop = StopRequest()

    async def work() -> int:
        assert stop.moment == "preparing"
        return 3

    with stop.listening():
        assert await stop.unless_asked(work(), "preparing", 1) == 3
        assert (stop.moment, stop.step) == ("committed", 1)
    assert not stop.will_save
