"""Passes without gradients in a whole job have micro-batches of their own size, and the same results."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.cluster.trainer_group import TrainerGroup
from tests.length_job import write_length_job
from tests.local_job import run_local

JOB = [
    "algorithm.kl={in_loss={coef=0.1}}",
    "rollout.batch_size=4",
    "trainer.optimizer_steps=2",
    "trainer.max_tokens_per_rank=64",
    "trainer.steps=2",
]


def test_log_probs_have_a_budget_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, compute = write_length_job(tmp_path), TrainerGroup.compute
    sizes: list[int] = []

    async def counted(
        self: Any, role: Any, outputs: Any, sequences: Any, micro_batches: Any, **ranks: Any
    ) -> Any:
        sizes.append(len(micro_batches[0]))
        return await compute(self, role, outputs, sequences, micro_batches, **ranks)

    monkeypatch.setattr(TrainerGroup, "compute", counted)
    plain = run_local(job, tmp_path / "plain", JOB).lines
    plain_sizes, sizes[:] = list(sizes), []
    large = run_local(job, tmp_path / "large", [*JOB, "trainer.max_logprob_tokens_per_rank=4096"]).lines
    assert min(plain_sizes) > 1 and sizes == [1] * len(plain_sizes) and len(sizes) == 4
    for one, other in zip(plain, large, strict=True):
        for name in ("train/loss", "train/grad_norm", "train/kl_loss"):
            assert other[name] == pytest.approx(one[name], rel=1e-3, abs=1e-5)
