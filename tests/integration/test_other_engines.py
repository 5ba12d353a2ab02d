"""Engines beside the job's own: one that runs elsewhere, a teacher and a judge that engines serve."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.jobs import Ended, Jobs
from tests.tiny_models import make_tiny_model

STEPS = 4
DISTILLATION = {
    "trainer__steps": 2,
    "algorithm__type": "on_policy_distillation",
    "checkpoint__interval": 2,
}


@pytest.fixture
def elsewhere(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a native engine that somebody else runs; its key is in ELSEWHERE_KEY."""
    command = [sys.executable, "-m", "rlrun.runner.engines.native", "--model", str(jobs.model)]
    key = jobs.folder / "key"
    arguments = ["--dtype", "float32", "--threads", "1", "--max-running", "64"]
    arguments += ["--api-key-file", str(key), "--weights", str(jobs.folder)]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        monkeypatch.setenv("ELSEWHERE_KEY", key.read_text().strip())
        yield url
        assert process.poll() is None, "the job left it running"
        process.terminate()


def test_engines_that_sleep_meanwhile_or_run_elsewhere_change_nothing(
    jobs: Jobs, reference: Ended, elsewhere: str
) -> None:
    sleeping = jobs.start("engine-asleep", trainer__steps=STEPS, engine__sleep=True, checkpoint__interval=2)
    whole = (jobs.folder / "job.toml").read_text()
    (jobs.folder / "plain.toml").write_text(whole.replace("max_running = 64\n", ""))
    key = "${env:ELSEWHERE_KEY}"
    engine = {"type": "external", "urls": [elsewhere], "dtype": "float32", "api_key": key}
    running = jobs.start("engine-elsewhere", trainer__steps=STEPS, engine=engine, spec="plain.toml")
    asleep, external = sleeping.wait(), running.wait()
    for job in (asleep, external):
        assert job.code == 0, job.output
        assert job.curve == reference.curve[:STEPS]
    assert all(line["perf/sleep_time"] > 0 for line in asleep.metrics)
    assert not (external.folder.path / "weights").exists()


def test_a_teacher_that_engines_serve_teaches_the_same(jobs: Jobs) -> None:
    teacher = str(make_tiny_model(jobs.folder / "teacher", seed=3))
    holding = jobs.start("teacher-held", teacher={"path": teacher}, rewards=[], **DISTILLATION)
    engines = [{"name": "big", "path": teacher, "dtype": "float32", "max_running": 8}]
    serving = jobs.start(
        "teacher-served", teacher={"engine": "big"}, engines=engines, rewards=[], **DISTILLATION
    )
    held, served = holding.wait(), serving.wait()
    for job in (held, served):
        assert job.code == 0, job.output
        assert len(job.metrics) == DISTILLATION["trainer__steps"]
    first, same = held.curve[0], served.curve[0]  # later ones add up what rounding made of the weights
    assert abs(first["train/advantages"]) > 0.01
    for name, value in first.items():
        if value is None:  # there is no reward
            continue
        assert same[name] == pytest.approx(value, rel=1e-4, abs=1e-4), name


def test_a_reference_that_engines_serve_is_the_policy_as_it_began(jobs: Jobs) -> None:
    engines = [{"name": "frozen", "path": str(jobs.model), "dtype": "float32", "max_running": 8}]
    near = {"algorithm__kl": {"in_loss": {"type": "k3", "coef": 0.1}}, "reference": {"engine": "frozen"}}
    job = jobs.run("reference-served", trainer__steps=2, engines=engines, **near)
    assert job.code == 0, job.output
    first, second = (line["train/kl_loss"] for line in job.metrics)
    assert abs(first) < 1e-8
    assert second > 100 * abs(first)


@pytest.mark.slow
def test_a_judge_that_engines_serve_is_asked_by_name(jobs: Jobs) -> None:
    engines = [{"name": "judge", "path": str(jobs.model), "dtype": "float32", "max_running": 8}]
    reward = {
        "type": "llm_judge",
        "engine": "judge",
        "max_tokens": 4,
        "score_pattern": "(\\\\d*)$",
        "attempts": 1,
    }
    job = jobs.run("judged", trainer__steps=2, engines=engines, rewards=[reward], scoring__on_error="zero")
    assert job.code == 0, job.output
    log = (job.folder.logs / "reward-0.log").read_text()
    assert "/v1/chat/completions" in log
