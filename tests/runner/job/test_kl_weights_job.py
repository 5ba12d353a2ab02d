"""A rollout that gives its tokens weights of their KL to the reference, in a job that has such a KL."""

from pathlib import Path

import pytest

from tests.length_job import write_length_job
from tests.local_job import run_local

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
WEIGHTED = [
    "algorithm.kl={in_loss={coef=0.0}}",
    "rollout.batch_size=4",
    "trainer.steps=3",
]


def test_the_kl_of_a_job_is_that_of_weighted_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    job = write_length_job(tmp_path)
    (tmp_path / "weighted.py").write_text(ROLLOUT)
    function = f"rollout.function.type={tmp_path / 'weighted.py'}:Weighted"
    plain, weighted = (
        run_local(job, tmp_path / f"runs-{kl}", [*WEIGHTED, function, f"rollout.function.kl={kl}"]).lines
        for kl in (1.0, 0.25)
    )
    assert plain[-1]["train/kl_loss"] > 0
    for one, other in zip(plain, weighted, strict=True):  # the KL is only measured, so the runs are the same
        assert other["train/kl_loss"] == pytest.approx(0.25 * one["train/kl_loss"], rel=1e-4)
        assert other["train/grad_norm"] == one["train/grad_norm"]
