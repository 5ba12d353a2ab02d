"""A job with a critic, a teacher, and a reference that follows the policy."""

import json
from pathlib import Path

import pytest

from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
teacher = { path = "teacher" }
critic = { lr = 3e-3, only_steps = 1 }
reference = { update_interval = 2 }
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { interval = 2, export_hf = false }

[rollout]
batch_size = 4
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16

[[rewards]]
type = "length"
max_tokens = 16
buffer = 16

[algorithm]
type = "ppo"
lambd = 0.95
kl = { in_reward = { type = "k1", coef = 0.01 } }
distillation = { coef = 0.01 }

[trainer]
optimizer_steps = 2
lr = 3e-3
dtype = "float32"
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    make_tiny_model(folder / "model")
    make_tiny_model(folder / "teacher", "llama", seed=3)
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.toml").write_text(SPEC)
    return folder / "job.toml"


def run(spec: Path, folder: Path, steps: int) -> Lines:
    return run_local(spec, folder, [f"trainer.steps={steps}"])


def test_a_resumed_job_goes_on_as_if_it_had_not_ended(spec: Path, tmp_path: Path) -> None:
    whole = run(spec, tmp_path / "whole", 4)
    run(spec, tmp_path / "parts", 2)
    rest = run(spec, tmp_path / "parts", 4)
    assert rest.curve == whole.curve[2:]
    alone, *others = whole.lines
    assert "train/pg_loss" not in alone
    assert alone["train/value_loss"] > 0
    for line in others:
        assert {"train/pg_loss", "train/value_loss", "train/critic/grad_norm"} <= line.keys()
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        assert line["perf/teacher_time"] > 0
        assert line["perf/values_time"] > 0
