"""Jobs of families that transformers computes, with native engines and with a real SGLang server."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.integration.jobs import Jobs
from tests.sglang_cpu.servers import ARGUMENTS, ENVIRONMENT, python
from tests.tiny_models import FOREIGN, make_tiny_model


def test_native_engines_serve_what_a_job_trains(jobs: Jobs, tmp_path: Path) -> None:
    """Its checkpoints are compared in tests/runner/trainer/test_parity.py."""
    model = make_tiny_model(tmp_path / "model", "gemma3_text", scale=0.05, pad_token_id=None)
    ended = jobs.run("once", model__path=str(model), trainer__steps=2, checkpoint__export_hf=True)
    assert ended.code == 0, ended.output
    assert max(line["train/train_rollout_logprob_abs_diff"] for line in ended.metrics) < 1e-4
    assert_trained(model, ended.folder.path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FOREIGN, "gpt_oss"])
def test_native_engines_serve_what_a_resumed_job_trains(family: str, jobs: Jobs, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", family, scale=0.05, pad_token_id=None)
    settings = {"model__path": str(model), "checkpoint__interval": 1}
    first = jobs.run(family, **settings, trainer__steps=2)
    assert first.code == 0, first.output
    ended = jobs.run(family, "--resume", **settings, trainer__steps=3, checkpoint__export_hf=True)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == [1, 2, 3]
    assert max(line["train/train_rollout_logprob_abs_diff"] for line in ended.metrics) < 1e-4
    assert_trained(model, ended.folder.path / "model")


@pytest.mark.slow
def test_a_resumed_job_trains_and_exports_what_its_server_serves(jobs: Jobs, tmp_path: Path) -> None:
    """Gemma 3 with windows, on two tensor-parallel ranks."""
    model = make_tiny_model(tmp_path / "gemma", "gemma3_text", scale=0.05, tied=True, pad_token_id=None)
    settings = {
        "model__path": str(model),
        "model__implementation": "transformers",
        "deterministic": False,  # a server draws as its batches fall
        "engine__type": "sglang",
        "engine__python": python(),
        "engine__environment": ENVIRONMENT,
        "engine__sglang": ARGUMENTS,
        "checkpoint__interval": 1,
        "trainer__parallel__tensor": 2,
    }
    first = jobs.run("served-gemma3", **settings, trainer__steps=2)
    assert first.code == 0, first.output
    ended = jobs.run("served-gemma3", "--resume", **settings, trainer__steps=3, checkpoint__export_hf=True)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == [1, 2, 3]
    assert max(line["train/train_rollout_logprob_abs_diff"] for line in ended.metrics) < 1e-4
    assert_trained(model, ended.folder.path / "model")


def assert_trained(before: Path, after: Path) -> None:
    """Every tensor of the exported model that has a gradient differs from the one that the job began with."""
    tensors = load_file(before / "model.safetensors")
    exported = load_file(after / "model.safetensors")
    assert exported.keys() == tensors.keys()
    model = AutoModelForCausalLM.from_pretrained(after)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    unchanged = {name for name, tensor in tensors.items() if torch.equal(exported[name], tensor)}
    assert unchanged - frozen - {name for name, _ in model.named_buffers()} == set()
