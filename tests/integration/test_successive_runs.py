"""Engines that get weights every second step: a run that is killed and resumed, and runs that begin with its
weights."""

import json
import signal

import psutil
import pytest

from tests.integration.jobs import Jobs

SETTINGS = {
    "rollout__weight_update_interval": 2,
    "checkpoint__interval": 3,
    "checkpoint__export_interval": 3,
    "checkpoint__export_hf": True,
    "trainer__steps": 6,
    "cluster__environment": {"JOB_NOTE": "plain", "JOB_TOKEN": "${env:JOB_TOKEN}"},
}
SECRET = "a-secret-of-this-test"


@pytest.mark.slow
def test_staleness_is_counted_and_a_killed_run_continues_bit_for_bit(jobs: Jobs) -> None:
    jobs.environment["JOB_TOKEN"] = SECRET
    whole = jobs.run("whole", **SETTINGS)
    assert whole.code == 0, whole.output
    # engines get the weights of steps 2, 3 (a checkpoint), 4 and 6
    assert [line["rollout/staleness/max"] for line in whole.metrics] == [0, 1, 0, 0, 0, 1]
    gaps = [line["train/train_rollout_logprob_abs_diff"] for line in whole.metrics]
    assert max(gap for step, gap in enumerate(gaps, 1) if step not in (2, 6)) < 1e-4 < min(gaps[1], gaps[5])

    hold = jobs.folder / "hold"
    hold.touch()
    jobs.environment["HOLD"] = str(hold)
    killed = jobs.start("killed", **SETTINGS)
    killed.until_step(5)  # the reward holds the job in its sixth step; the last checkpoint is of the third
    for name in ("trainer 0", "engine 0"):
        assert psutil.Process(killed.pid(name)).environ()["JOB_NOTE"] == "plain"
    killed.signal(signal.SIGKILL)
    killed.wait()
    hold.unlink()
    resumed = jobs.run("killed", "--resume", **SETTINGS)
    assert resumed.code == 0, resumed.output
    assert resumed.curve == whole.curve

    files = [path for path in jobs.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]

    models = whole.folder.models
    assert sorted(path.name for path in models.iterdir()) == ["step-3", "step-6"]
    final, last = (path / "model.safetensors" for path in (whole.folder.model, models / "step-6"))
    assert final.read_bytes() == last.read_bytes()

    steps = {"trainer__steps": 1, "rollout__weight_update_interval": 1, "checkpoint__export_hf": True}
    fresh = jobs.run("fresh", "--from", "whole@3", **steps, checkpoint__start_optimizer=False)
    exported = jobs.run("exported", **steps, model__path=str(models / "step-3"))
    assert fresh.code == exported.code == 0, fresh.output + exported.output
    assert fresh.curve == exported.curve  # the tiny model is in float32, so that the exported one is exact
    begun = jobs.run("begun", "--from", "whole@3", **steps)
    assert begun.code == 0, begun.output
    of_rollouts = [
        {k: v for k, v in job.curve[0].items() if k.startswith("rollout/")} for job in (fresh, begun)
    ]
    assert of_rollouts[0] == of_rollouts[1]
    weights = [(job.folder.model / "model.safetensors").read_bytes() for job in (fresh, begun)]
    assert weights[0] != weights[1]  # Adam's moments of the other run move them
    assert json.loads(begun.folder.lock.read_text())["given"]["checkpoint"]["start_from"].endswith("step-3")
