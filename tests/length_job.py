"""A job for tests/local_job.py: a random model writes up to 16 tokens, and the fewer the better."""

import json
from pathlib import Path

from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
rewards = [{ type = "length", max_tokens = 16, buffer = 16 }]
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { export_hf = false }

[rollout]
batch_size = 8
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16

[trainer]
lr = 1e-2
dtype = "float32"
"""


def write_length_job(folder: Path) -> Path:
    """Writes the job's model, rows and spec, and returns the spec. Algorithm and steps are the caller's."""
    make_tiny_model(folder / "model")
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(64)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = folder / "job.toml"
    spec.write_text(SPEC)
    return spec
