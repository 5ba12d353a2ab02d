"""Jobs that keep the checkpoint of the best evaluation: `checkpoint.keep_best`."""

import json
from pathlib import Path

from rlrun.cli.run_states import checkpoint_at
from rlrun.runner.checkpoints.folder import checkpoints_in
from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { interval = 3, keep = 1 }

[rollout]
batch_size = 8
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16

[[rewards]]
type = "length"
max_tokens = 16
buffer = 16

[eval]
interval = 2

[[eval.datasets]]
name = "long"
path = "rows.jsonl"
rewards = [{ type = "length", max_tokens = 16, buffer = 16, weight = -1.0 }]

[trainer]
lr = 3e-3
dtype = "float32"
"""
"""Training makes responses shorter, and the evaluation prefers long ones: it becomes worse."""
KEEPS = 'checkpoint.keep_best="eval/long/reward"'


def run(folder: Path, name: str, steps: int, *overrides: str) -> Lines:
    return run_local(folder / "job.toml", folder / name, [f"trainer.steps={steps}", *overrides])


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def test_the_best_checkpoint_is_kept_exported_and_known_to_a_resumed_job(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.toml").write_text(SPEC)

    whole = run(tmp_path, "whole", 8, KEEPS)
    rewards = {line["step"]: line["eval/long/reward"] for line in whole.lines if "eval/long/reward" in line}
    best = max((step for step in rewards if step), key=rewards.__getitem__)
    assert best == 2 and list(checkpoints_in(tmp_path / "whole/checkpoints")) == [2, 8]
    run(tmp_path, "short", 2, "checkpoint.interval=2")
    assert weights(tmp_path / "whole") == weights(tmp_path / "short") != weights(tmp_path)

    first = run(tmp_path, "parts", 4, KEEPS)
    rest = run(tmp_path, "parts", 8, KEEPS)
    assert [*first.curve, *rest.curve] == whole.curve
    assert list(checkpoints_in(tmp_path / "parts/checkpoints")) == [2, 8]
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    (tmp_path / "parts/spec.lock.json").touch()  # the driver writes it, which this job has not
    assert checkpoint_at("parts@best", tmp_path) == tmp_path / "parts/checkpoints/step-2"
