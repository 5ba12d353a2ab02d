"""The gradients of forward passes in order are those of others, up to rounding."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rlrun.runner.kernels.operators import load, set_order
from tests.runner.trainer.parity_worker import gradients
from tests.runner.trainer.trainer_cases import make_branches, make_rank, make_spec, plan
from tests.tiny_models import make_tiny_model


@pytest.fixture(autouse=True)
def _exact_process() -> Iterator[None]:
    """Undoes what a trainer's process sets once."""
    yield
    set_order(value=None)


@pytest.mark.skipif(not load(), reason="no C++ compiler")
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("share", [False, True])
def test_the_step_is_the_same(family: str, share: bool, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, family, scale=0.05, pad_token_id=None)
    results = {}
    for exactly in (False, True):
        set_order(value=exactly)
        spec = make_spec(folder, lr=1e-12, max_grad_norm=1e9, max_tokens_per_rank=400, share_prefixes=share)
        trainer = make_rank(folder, spec)
        sequences = make_branches()
        (metrics,) = trainer.policy.train(sequences, plan(sequences, spec))
        results[exactly] = metrics, gradients(trainer)
        trainer.close()
    (usual_metrics, usual), (exact_metrics, ours) = results[False], results[True]
    for name in ("train/loss", "train/entropy", "train/grad_norm"):
        assert exact_metrics[name] == pytest.approx(usual_metrics[name], rel=1e-5, abs=1e-6)
    assert any(not torch.equal(ours[name], gradient) for name, gradient in usual.items())
    for name, gradient in usual.items():
        assert (ours[name] - gradient).abs().max() < 1e-5 * max(1.0, float(gradient.abs().max())), name
