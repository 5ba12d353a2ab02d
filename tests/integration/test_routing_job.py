"""GRPO of a mixture of experts: a real SGLang server chooses them, training takes them over."""

from pathlib import Path

import pytest

from tests.integration.jobs import Jobs
from tests.integration.test_sglang_job import SETTINGS
from tests.sglang_cpu.servers import python
from tests.tiny_models import make_tiny_model


@pytest.mark.slow
def test_training_goes_by_the_servers_choices(jobs: Jobs, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "moe", "qwen3_moe", num_experts=8)
    settings = SETTINGS | {
        "model__path": str(model),
        "engine__python": python(),
        "trainer__steps": 3,
        "trainer__optimizer_steps": 2,
        "trainer__moe__routing_replay": "engine",
        "trainer__parallel__fsdp": 2,
        "trainer__parallel__expert": 2,
    }
    ended = jobs.run("routing", **settings)
    assert ended.code == 0, ended.output
    assert len(ended.metrics) == 3
    for line in ended.metrics:
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
