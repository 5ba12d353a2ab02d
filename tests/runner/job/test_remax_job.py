"""A job in which a prompt has one sample, and the greedy response is what it is compared with."""

import json
from pathlib import Path

from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
rewards = [{ type = "length", max_tokens = 16, buffer = 16 }]
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { interval = 3, export_hf = false }

[rollout]
batch_size = 8
samples_per_prompt = 1
max_prompt_tokens = 64
max_response_tokens = 16

[algorithm]
type = "remax"

[trainer]
lr = 1e-2
dtype = "float32"
"""


def test_single_samples_train_and_resume_bit_for_bit(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.toml").write_text(SPEC)
    whole = run_local(tmp_path / "job.toml", tmp_path / "whole", ["trainer.steps=6"])
    run_local(tmp_path / "job.toml", tmp_path / "parts", ["trainer.steps=3"])
    rest = run_local(tmp_path / "job.toml", tmp_path / "parts", ["trainer.steps=6"])
    assert rest.curve == whole.curve[3:]
    for line in whole.lines:
        difference = line["rollout/reward/mean"] - line["rollout/greedy_reward"]
        assert abs(line["train/advantages"] - difference) < 1e-5
    assert max(line["train/grad_norm"] for line in whole.lines) > 0
