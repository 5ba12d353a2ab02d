"""`rlrun eval` of a model on a running server: whole evaluations, their failures, and their resume."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.job.launch import launch
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import read_groups, rollout_path
from rlrun.specs.problems.findings import SpecError
from tests.runner.engines.chat_stand_in import Answer, ChatStandIn, choices, fault
from tests.waiting import PATIENCE

SPEC = """
name = "served"
[model]
path = "org/toy"
[data]
path = "rows.jsonl"
[debug]
mode = "eval"
[trainer]
steps = 1
[scoring]
workers = 1
[[rewards]]
type = "exact_match"
[eval.server]
url = "{url}"
model = "org/toy"
concurrency = 4
retry_seconds = 0
[[eval.datasets]]
name = "sums"
path = "rows.jsonl"
samples_per_prompt = 2
"""
PROMPTS = 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{number} + 1", "label": str(number + 1)} for number in range(PROMPTS)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def evaluate(url: str, *settings: str, resume: bool = False) -> RunFolder:
    Path("spec.toml").write_text(SPEC.format(url=url))
    launch(load_checked_spec([Path("spec.toml")], settings), resume=resume)
    return RunFolder(Path("runs/served"))


def number_of(body: Mapping[str, Any]) -> int:
    return int(body["messages"][0]["content"].split()[0])


def right(body: Mapping[str, Any]) -> Answer:
    return choices(*[str(number_of(body) + 1)] * body.get("n", 1))


def figures(run: RunFolder) -> dict[str, Any]:
    [line] = read_metrics(run.metrics)
    return {name.removeprefix("eval/sums/"): value for name, value in line.items()}


def test_a_refused_request_is_a_failed_sample_and_not_a_wrong_one(folder: Path) -> None:
    def answer(body: Mapping[str, Any]) -> Answer:
        number = number_of(body)
        if number == 3:
            return fault(400, "too long")
        return right(body) if number != 5 else choices("no", "no")

    with ChatStandIn(answer) as server:
        run = evaluate(server.url)
    found = figures(run)
    assert (found["failed"], found["failed/engine"]) == (2, 2)
    assert found["reward"] == pytest.approx((PROMPTS - 2) / (PROMPTS - 1))
    groups = read_groups(rollout_path(run.rollouts, 0, "eval"))
    failures = [sample.failure or "" for group in groups for sample in group.samples if sample.failure]
    assert all("answered with HTTP 400: too long" in failure for failure in failures)
    assert len(failures) == 2
    assert {len(sample.tokens) for group in groups for sample in group.samples} == {0}


def test_an_evaluation_that_a_server_ends_continues_on_another_one(folder: Path) -> None:
    answered: list[int] = []

    def answer(body: Mapping[str, Any]) -> Answer:
        if len(answered) == 8:
            return fault(401, "the key is not valid any more")
        answered.append(number_of(body))
        return right(body)

    with ChatStandIn(answer) as server:
        run = evaluate(server.url)
    state = run.read_state()
    assert state["status"] == "failed"
    assert "the key is not valid any more. Correct eval.server" in state["error"]
    kept = [json.loads(line) for line in run.evaluated.read_text().splitlines()]
    assert kept

    with ChatStandIn(right) as other:
        with pytest.raises(ValueError, match=r"eval\.server\.model"):
            evaluate(other.url, "eval.server.model='org/other'", resume=True)
        run = evaluate(other.url, "eval.server.concurrency=2", resume=True)
    again = {number_of(body) for body in other.bodies}
    assert len(again) == PROMPTS - len(kept)
    assert not again & {group["samples"][0]["index"] for group in kept}
    assert figures(run)["reward"] == 1
    assert run.read_state()["status"] == "done"


def test_a_server_that_answers_nothing_gives_no_figure(folder: Path) -> None:
    with ChatStandIn([fault(500, "overloaded")]) as server:
        run = evaluate(server.url)
    assert run.read_state()["status"] == "failed"
    assert "overloaded" in run.read_state()["error"] + (run.logs / "driver.log").read_text()
    assert not run.metrics.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["deterministic=true"], "promises nothing of the kind"),
        (["true_on_policy=true"], "returns no log-probs"),
        (["eval.datasets.0.function={type='agent', command=['agent']}"], '"agent" works on tokens'),
        (["eval.datasets.0.function={type='environment'}"], '"environment" works on tokens'),
        (["rollout.function={type='multi_turn_tools',tools=[{type='python'}],syntax='tags'}"], '"tags" in'),
        (["eval.datasets.0.rewards=[{type='length',max_tokens=8,buffer=4}]"], '"length" reads the tokens'),
        (["eval.datasets.0.min_response_tokens=4"], "is not part of OpenAI's protocol"),
        (["rollout.stop_token_ids=[7]"], "is not part of OpenAI's protocol"),
        (["eval.datasets.0.apply_chat_template=false"], "always applies its template"),
        (
            ["engines=[{name='j', type='external', urls=['http://h'], path='org/j'}]",
             "rewards=[{type='llm_judge', engine='j'}]"],
            "starts no [[engines]]",
        ),
    ],
)  # fmt: skip
def test_what_needs_tokens_is_refused_by_name(folder: Path, settings: list[str], message: str) -> None:
    Path("spec.toml").write_text(SPEC.format(url="http://127.0.0.1:1/v1"))
    with pytest.raises(SpecError) as error:
        load_checked_spec([Path("spec.toml")], settings)
    assert message in str(error.value)


def test_a_job_that_trains_does_not_evaluate_the_model_of_a_server(folder: Path) -> None:
    Path("spec.toml").write_text(SPEC.format(url="http://127.0.0.1:1/v1").replace('mode = "eval"', ""))
    with pytest.raises(SpecError, match="another model than the job trains"):
        load_checked_spec([Path("spec.toml")])


def test_the_command_line_evaluates_the_model_at_an_address(folder: Path) -> None:
    with ChatStandIn(lambda body: choices(rf"\boxed{{{number_of(body) + 1}}}")) as server:
        arguments = ["eval", server.url, "--data", "rows.jsonl", "--reward", "math"]
        arguments += ["--api-key-env", "TOY_KEY", "--set", "scoring.workers=1"]
        ended = subprocess.run(
            [sys.executable, "-c", "from rlrun.cli.main import run; run()", *arguments],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
            env=os.environ | {"TOY_KEY": "open sesame"},
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"evaluates org/toy at {server.url}" in ended.stdout
    assert set(server.keys) == {"Bearer open sesame"}
    assert {body["model"] for body in server.bodies} == {"org/toy"}
    run = Path("runs/org-toy-eval")
    assert read_metrics(run / "metrics.jsonl")[0]["eval/rows/reward"] == 1
    written = [path for path in run.rglob("*") if path.is_file() and b"open sesame" in path.read_bytes()]
    assert not written
