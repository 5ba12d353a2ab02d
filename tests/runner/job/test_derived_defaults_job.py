"""Whole jobs with unset keys, and with each of their values written out."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.derived.resolution import open_keys
from tests.local_job import run_local
from tests.resolved_specs import resolved
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
cluster = { threads = 1 }
checkpoint = { export_hf = false }

[rollout]
batch_size = 8
samples_per_prompt = 4
max_response_tokens = 16

[eval]
interval = 1
datasets = [{ name = "held", path = "rows.jsonl" }]

[[rewards]]
type = "length"
max_tokens = 16
buffer = 16

[trainer]
steps = 2
lr = 1e-3
global_batch_size = 16
"""
WITHOUT_EFFECT = {
    "rollout.sampling_mask",  # tokens are drawn from the whole vocabulary
    "engine.kept_samples",  # single_turn has no later turns
    "engine.lora_sync",  # no adapters are trained
    "engine.weight_sync",  # native engines use the trainer's memory
    "engine.weight_bucket",
}
"""Keys that the rules refuse in this job, because they have no effect."""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    make_tiny_model(tmp_path / "model", scale=0.05)
    rows = [
        {"prompt": f"say {number} as often as you like, and then as often again: " * 4}
        for number in range(16)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row | {"label": ""}) + "\n" for row in rows))
    (tmp_path / "job.toml").write_text(SPEC)
    return tmp_path / "job.toml"


def value_at(spec: dict[str, Any], key: str) -> Any:
    value: Any = spec
    for part in key.split("."):
        value = value[int(part) if part.isdecimal() else part]
    return value


def test_a_job_is_the_same_with_its_defaults_written_out(spec: Path, tmp_path: Path) -> None:
    job = resolved(load_checked_spec([spec]).spec)
    keys = [
        key for key, _ in open_keys(job) if key not in WITHOUT_EFFECT and not key.startswith("eval.datasets")
    ]
    assert {"trainer.old_log_probs", "trainer.share_prefixes", "rollout.oversample", "eval.top_p"} <= set(
        keys
    )
    values = job.model_dump(mode="json")
    written = [f"{key}={json.dumps(value_at(values, key))}" for key in keys]
    unset = run_local(spec, tmp_path / "unset", ["trainer.dtype=bfloat16", "engine.dtype=bfloat16"])
    assert run_local(spec, tmp_path / "written", written).curve == unset.curve
    trained = [line["train/approx_kl"] for line in unset.lines if "train/approx_kl" in line]
    assert len(trained) == 2 and all(trained)  # the second optimizer step has other weights
