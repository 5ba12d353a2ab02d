"""A job that trains on the best and the worst response of each group."""

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
checkpoint = { interval = 2, export_hf = false }

[rollout]
batch_size = 8
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16

[algorithm]
type = "online_dpo"

[trainer]
lr = 3e-3
optimizer_steps = 2
dtype = "float32"
"""


def test_pairs_of_the_policy_s_responses_train_and_resume_bit_for_bit(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.toml").write_text(SPEC)
    whole = run_local(tmp_path / "job.toml", tmp_path / "whole", ["trainer.steps=4"])
    run_local(tmp_path / "job.toml", tmp_path / "parts", ["trainer.steps=2"])
    rest = run_local(tmp_path / "job.toml", tmp_path / "parts", ["trainer.steps=4"])
    assert rest.curve == whole.curve[2:]
    assert max(line["train/preferred_frac"] for line in whole.lines) > 0
    for line in whole.lines:
        assert 0 <= line["train/advantages"] <= 1, "the share of pairs whose rewards differ"
