"""A job that trains the MTP layer beside the policy: native engines, a resumed run, an export."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.converters.conversions import convert
from tests.integration.jobs import Jobs
from tests.mtp_models import make_mtp_model

LAYER = "model.mtp_layers."


@pytest.mark.slow
def test_a_resumed_job_trains_and_exports_the_layer(jobs: Jobs, tmp_path: Path) -> None:
    model = make_mtp_model(tmp_path / "model", "mimo", scale=0.1, pad_token_id=None)
    settings = {
        "model__path": str(model),
        "checkpoint__interval": 1,
        "trainer__parallel__fsdp": 2,
        "trainer__mtp_loss": 0.2,
    }
    first = jobs.run("mtp", **settings, trainer__steps=2)
    assert first.code == 0, first.output
    ended = jobs.run("mtp", "--resume", **settings, trainer__steps=6, checkpoint__export_hf=True)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == [1, 2, 3, 4, 5, 6]
    assert all(0 <= line["train/mtp_accuracy"] <= 1 for line in ended.metrics)
    assert ended.metrics[-1]["train/mtp_loss"] < ended.metrics[0]["train/mtp_loss"]
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in ended.metrics)
    before = load_file(model / "model.safetensors")
    after = load_file(ended.folder.path / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    layer = [name for name in before if name.startswith(LAYER)]
    assert len(layer) == 16
    assert not any(torch.equal(before[name], after[name]) for name in layer)
    converted = load_file(convert(ended.folder.path, "hf", tmp_path / "out") / "model.safetensors")
    assert converted.keys() == after.keys()
    assert all(torch.equal(converted[name], after[name]) for name in after)
    refused = jobs.run("mtp", "--resume", **(settings | {"trainer__mtp_loss": 0.0}), trainer__steps=7)
    assert refused.code != 0
    assert "was saved with trainer.mtp_loss" in " ".join(refused.output.split())
