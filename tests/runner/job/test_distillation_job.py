"""Jobs that distil a teacher's distribution: nothing is set but the algorithm."""

import json
from pathlib import Path

import pytest

from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl", response_key = "response" }
teacher = { path = "teacher" }
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { interval = 3, export_hf = false }

[rollout]
batch_size = 4
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16

[algorithm]
type = "gkd"

[trainer]
lr = 3e-3
dtype = "float32"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    make_tiny_model(folder / "model")
    make_tiny_model(folder / "teacher", "llama", seed=3)
    rows = [{"prompt": f"say {number}", "response": f"no, {number * 7}"} for number in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    on_policy = SPEC.replace(', response_key = "response"', "")
    (folder / "job.toml").write_text(on_policy)
    off_policy = SPEC.replace("[trainer]", 'responses = "data"\n\n[trainer]\nglobal_batch_size = 8')
    head, _, rest = off_policy.partition("[rollout]")
    rest = rest.replace("batch_size = 4\nsamples_per_prompt = 4\n", "", 1)
    head = head.replace('engine = { dtype = "float32", max_running = 64 }\n', "")
    (folder / "data.toml").write_text(f"{head}[rollout]{rest}")
    return folder


def run(spec: Path, folder: Path, steps: int, *overrides: str) -> Lines:
    return run_local(spec, folder, [f"trainer.steps={steps}", *overrides])


def test_the_student_approaches_the_teacher_and_resumes_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    spec = folder / "job.toml"
    whole = run(spec, tmp_path / "whole", 6)
    run(spec, tmp_path / "parts", 3)
    rest = run(spec, tmp_path / "parts", 6)
    assert rest.curve == whole.curve[3:]
    divergences = [line["train/divergence"] for line in whole.lines]
    assert divergences == [line["train/loss"] for line in whole.lines]
    assert 0 < divergences[-1] < 0.9 * divergences[0], divergences
    assert all(line["train/grad_norm"] > 0 and line["perf/teacher_time"] > 0 for line in whole.lines)


def test_the_teacher_s_distribution_of_the_rows_responses_is_learnt(folder: Path, tmp_path: Path) -> None:
    lines = run(folder / "data.toml", tmp_path, 6, "algorithm.beta=0.0").lines
    assert 0 < lines[-1]["train/divergence"] < 0.8 * lines[0]["train/divergence"]


def test_a_divergence_beside_rewards_acts_too(folder: Path, tmp_path: Path) -> None:
    term = "{coef=0.5, divergence={beta=1.0, top_k=16}}"
    rewards = '[{type="length", max_tokens=16, buffer=16}]'
    overrides = ["algorithm.type=grpo", f"algorithm.distillation={term}", f"rewards={rewards}"]
    (line,) = run(folder / "job.toml", tmp_path, 1, *overrides).lines
    assert line["train/divergence"] > 0
    expected = line["train/pg_loss"] + 0.5 * line["train/divergence"]
    assert line["train/loss"] == pytest.approx(expected, rel=1e-4)
