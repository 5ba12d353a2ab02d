"""Engines beside the job's own: one that runs elsewhere, a teacher and a judge that engines serve."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.integration.jobs import ROLLOUT_ONLY, Ended, Jobs
from tests.tiny_models import make_tiny_model

STEPS = 4
DISTILLATION = {
    "trainer__steps": 2,
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


def test_sleeping_and_external_engines_give_the_same_result(
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


class Claiming(BaseHTTPRequestHandler):
    """An engine whose every token has this log-prob, and that can do nothing else."""

    log_prob = -1.0
    vocabulary = 0

    def do_GET(self) -> None:
        """Health, and what it serves."""
        self.answer({"model_type": "qwen3", "vocab_size": self.vocabulary, "max_length": 4096})

    def do_POST(self) -> None:
        """Three tokens for each sample."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer([self.sample(name) for name in body["rid"]] if self.path == "/generate" else {})

    def sample(self, name: str) -> dict[str, object]:
        """As SGLang has it."""
        meta = {"id": name, "finish_reason": {"type": "stop"}, "weight_version": "default"}
        return {"output_ids": [5, 6, 7], "meta_info": meta | {"output_token_logprobs": self.log_probs()}}

    def log_probs(self) -> list[object]:
        return [[self.log_prob, token, None] for token in (5, 6, 7)]

    def answer(self, answer: object) -> None:
        raw = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *arguments: object) -> None:
        """Prints no line for each request."""


@pytest.fixture
def claiming(jobs: Jobs) -> Iterator[Callable[[float], str]]:
    """Starts an engine that claims a log-prob; its address."""
    vocabulary = json.loads((jobs.model / "config.json").read_text())["vocab_size"]
    with ExitStack() as stack:

        def start(log_prob: float) -> str:
            handler = type("Handler", (Claiming,), {"log_prob": log_prob, "vocabulary": vocabulary})
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start


def with_external_engines(jobs: Jobs, name: str, *urls: str) -> Ended:
    """Generates one step's samples with engines that the job does not start."""
    settings = {"debug__mode": "rollout", "deterministic": False, "trainer__steps": 1}
    settings |= {"rollout__max_attempts": 1, "rollout__batch_size": 4}
    whole = (jobs.folder / "job.toml").read_text()
    (jobs.folder / "outside.toml").write_text(whole.replace("max_running = 64\n", ""))
    return jobs.run(name, spec="outside.toml", engine={"type": "external", "urls": list(urls)}, **settings)


def test_a_wrong_answer_is_requested_from_another_engine(
    jobs: Jobs, claiming: Callable[[float], str]
) -> None:
    made = with_external_engines(jobs, "lied-to-by-one", claiming(0.7), claiming(-1.0))
    assert made.code == 0, made.output
    assert made.metrics[0]["rollout/bad_answers"] > 0
    assert made.metrics[0]["rollout/log_probs"] == -1.0


@pytest.mark.slow
def test_wrong_answers_of_the_only_engine_end_the_job_and_name_it(
    jobs: Jobs, claiming: Callable[[float], str]
) -> None:
    lying = claiming(0.7)
    starved = with_external_engines(jobs, "lied-to", lying)
    told = f"engine 0 at {lying} answered /generate with log-prob 0.7 at token 0 of sample rollout-"
    assert starved.code == 3
    assert "the rollout starved: of 4 groups tried 0 were kept" in starved.output
    assert f"The last failure: BadAnswer: {told}" in starved.output.replace("\n", " ").replace("  ", " ")


@pytest.mark.parametrize(
    ("algorithm", "measured"),
    [
        ("on_policy_distillation", "train/advantages"),
        pytest.param("gkd", "train/divergence", marks=pytest.mark.slow),
    ],
)
def test_a_teacher_that_engines_serve_teaches_the_same(jobs: Jobs, algorithm: str, measured: str) -> None:
    teacher = str(make_tiny_model(jobs.folder / f"teacher-of-{algorithm}", seed=3))
    distillation = DISTILLATION | {"algorithm__type": algorithm, "rewards": []}
    holding = jobs.start(f"{algorithm}-held", teacher={"path": teacher}, **distillation)
    engines = [{"name": "big", "path": teacher, "dtype": "float32", "max_running": 8}]
    serving = jobs.start(f"{algorithm}-served", teacher={"engine": "big"}, engines=engines, **distillation)
    held, served = holding.wait(), serving.wait()
    for job in (held, served):
        assert job.code == 0, job.output
        assert len(job.metrics) == DISTILLATION["trainer__steps"]
    first, same = held.curve[0], served.curve[0]  # later ones add up what rounding made of the weights
    assert abs(first[measured]) > 0.01
    for name, value in first.items():
        if value is None:  # there is no reward
            continue
        assert same[name] == pytest.approx(value, rel=1e-4, abs=1e-4), name


@pytest.mark.slow
def test_each_source_has_a_teacher_of_its_own(jobs: Jobs) -> None:
    """Both are the policy as it began but for the seed of one, so that only its rows have a distance."""
    other = str(make_tiny_model(jobs.folder / "teacher-of-code", seed=3))
    engines = [
        {"name": name, "path": path, "dtype": "float32", "max_running": 8}
        for name, path in (("math", str(jobs.model)), ("code", other))
    ]
    shared = {"algorithm__type": "gkd", "rewards": [], "engines": engines, "trainer__steps": 1}
    distances = {}
    for name, sources in {
        "same": {"0": "math"},
        "both": {"0": "math", "1": "code"},
        "other": {"0": "code", "1": "code"},
    }.items():
        teacher = {"sources": sources} | ({"engine": "math"} if name == "same" else {})
        rows = [{"type": "jsonl", "path": str(jobs.folder / "rows.jsonl")} for _ in range(2)]
        job = jobs.run(
            f"sources-{name}", data={"type": "mixture", "sources": rows}, teacher=teacher, **shared
        )
        assert job.code == 0, job.output
        distances[name] = job.metrics[0]["train/divergence"]
    assert abs(distances["same"]) < 1e-5 < distances["both"] < distances["other"]


@pytest.mark.slow
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
    """A random model gives no scores, which is the judge's failure: no sample has a reward of 0 for it."""
    engines = [{"name": "judge", "path": str(jobs.model), "dtype": "float32", "max_running": 8}]
    reward = {"type": "llm_judge", "engine": "judge", "max_tokens": 4, "attempts": 1}
    settings = ROLLOUT_ONLY | {"scoring__on_error": "zero", "fault_tolerance__execution_retries": 0}
    job = jobs.run("judged", trainer__steps=1, engines=engines, rewards=[reward], **settings)
    assert job.code == 3, job.output
    assert "/v1/chat/completions gave no answer in 1 attempt" in job.output
    assert "no score in the judge's answer" in job.output
    assert not job.folder.metrics.exists() or not job.metrics
