"""`rlrun plan --deep`: one of 64 ranks, traced on this machine."""

import json
from pathlib import Path

import pytest

from tests.cli.cli_outcome import Command
from tests.tiny_models import make_tiny_model

JOB = """
name = "deep"
[model]
path = "{folder}"
[data]
path = "{rows}"
[[rewards]]
type = "math"
[rollout]
max_prompt_tokens = 100
max_response_tokens = 300
[trainer]
steps = 1
max_tokens_per_rank = 1024
activation_checkpointing = "full"
parallel = {{ fsdp = 8, tensor = 2, context = 2, pipeline = 2 }}
[engine]
count = 64
[cluster]
nodes = 8
gpus_per_node = 8
address = "10.0.0.1:6379"
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    folder = make_tiny_model(tmp_path / "model", num_hidden_layers=4)
    spec = tmp_path / "job.toml"
    spec.write_text(JOB.format(folder=folder, rows=rows))
    return spec


def test_a_rank_s_bytes_by_purpose(rlrun: Command, job: Path) -> None:
    outcome = rlrun("plan", job, "--deep", "--rank", 63, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["rank"], found["ranks"]) == (63, 64)
    assert found["most"]["optimizer"] == pytest.approx(2 * found["most"]["parameters"], rel=0.01)
    assert found["most"]["gradients"] == found["most"]["parameters"]
    assert min(found["most"][name] for name in ("activations", "logits", "gathered layers")) > 0
    assert found["device_peak"] == sum(found["peak"].values())


def test_a_rank_needs_the_dry_run(rlrun: Command, job: Path) -> None:
    outcome = rlrun("plan", job, "--rank", 1)
    assert outcome.code == 2
    assert "--rank" in outcome.err
    assert "--deep" in outcome.err
