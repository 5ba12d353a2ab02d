"""A rollout that gives its tokens weights of their KL to the reference, in a job that has such a KL."""

import json
from pathlib import Path

import pytest

from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

ROLLOUT = """
from pydantic import BaseModel, ConfigDict

from rlrun.plugins.generation import Trajectory


class WeightedParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kl: float = 1.0


class Weighted:
    Params = WeightedParams
    api_version = 1

    def __init__(self, params):
        self.params = params

    async def run(self, session):
        trajectory = Trajectory(session.prompt.tokens)
        trajectory.add(await session.generate(trajectory.tokens()), kl=self.params.kl)
        return trajectory
"""
SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
rewards = [{ type = "length", max_tokens = 16, buffer = 16 }]
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { export_hf = false }
algorithm = { type = "grpo", kl = { in_loss = { coef = 0.0 } } }

[rollout]
batch_size = 4
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16
function = { type = "weighted.py:Weighted" }

[trainer]
steps = 3
lr = 1e-2
dtype = "float32"
"""


def test_the_kl_of_a_job_is_that_of_weighted_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    make_tiny_model(tmp_path / "model")
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "weighted.py").write_text(ROLLOUT)
    (tmp_path / "job.toml").write_text(SPEC)
    plain, weighted = (
        run_local(tmp_path / "job.toml", tmp_path / f"runs-{kl}", [f"rollout.function.kl={kl}"]).lines
        for kl in (1.0, 0.25)
    )
    assert plain[-1]["train/kl_loss"] > 0
    for one, other in zip(plain, weighted, strict=True):  # the KL is only measured, so the runs are the same
        assert other["train/kl_loss"] == pytest.approx(0.25 * one["train/kl_loss"], rel=1e-4)
        assert other["train/grad_norm"] == one["train/grad_norm"]
