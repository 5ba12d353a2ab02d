"""Decoupled PPO in a whole asynchronous job: the policy before the update is estimated."""

import json
from pathlib import Path

from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
model = { path = "model" }
data = { path = "rows.jsonl" }
rewards = [{ type = "length", max_tokens = 16, buffer = 16 }]
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1, placement = "disaggregated" }
checkpoint = { export_hf = false }

[rollout]
batch_size = 8
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16
mode = "async"
max_staleness = 2

[algorithm]
type = "grpo"
correction = { type = "tis", high = 2.0 }

[trainer]
steps = 6
optimizer_steps = 2
lr = 1e-2
dtype = "float32"
old_log_probs = "interpolated"
"""


def test_the_policy_before_the_update_is_estimated_without_a_pass(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.toml").write_text(SPEC)
    lines = run_local(tmp_path / "job.toml", tmp_path / "run").lines
    assert max(line["rollout/staleness/max"] for line in lines) >= 1
    assert max(line.get("perf/log_prob_time", 0.0) for line in lines) == 0
    assert max(abs(line["train/tis/mean"] - 1) for line in lines) > 1e-6, "it is not the engine's policy"
    assert max(line["train/grad_norm"] for line in lines) > 0
