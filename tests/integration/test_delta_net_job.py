"""A job whose model has Gated DeltaNet: native engines, partial rollouts, a resumed checkpoint, an export."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.integration.jobs import Jobs
from tests.tiny_models import make_tiny_model

PARTIAL = {
    "deterministic": False,
    "rollout__partial": True,
    "rollout__batch_size": 4,
    "rollout__oversample": 10,
    "rollout__max_response_tokens": 96,
    "rollout__max_staleness": 4,
    "engine__max_running": 16,
    "checkpoint__interval": 2,
}

CUT = {"trainer__parallel__context": 2}
"""Ranks exchange tokens for heads of Gated DeltaNet."""
ROUTED = {
    "trainer__moe__routing_replay": "engine",
    "trainer__parallel__fsdp": 2,
    "trainer__parallel__expert": 2,
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout"), [("qwen3_5_text", CUT), ("qwen3_next", ROUTED)])
def test_a_resumed_job_trains_and_exports_what_its_engines_serve(
    jobs: Jobs, tmp_path: Path, family: str, layout: dict[str, object]
) -> None:
    model = make_tiny_model(tmp_path / "model", family, scale=0.05, tied=True, pad_token_id=None)
    settings = PARTIAL | layout | {"model__path": str(model)}
    first = jobs.run(family, **settings, trainer__steps=3)
    assert first.code == 0, first.output
    ended = jobs.run(family, "--resume", **settings, trainer__steps=6, checkpoint__export_hf=True)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == list(range(1, 7))
    difference = [line["train/train_rollout_logprob_abs_diff"] for line in ended.metrics]
    assert difference[0] < 1e-4  # a first step has no older weights
    assert any(line["rollout/off_policy_frac"] > 0 for line in ended.metrics)
    before = load_file(model / "model.safetensors")
    folder = ended.folder.path / "model"
    exported = {
        name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()
    }
    assert exported.keys() == before.keys()
    unchanged = [name for name, tensor in before.items() if torch.equal(exported[name], tensor)]
    assert not [name for name in unchanged if ".experts." not in name]  # an expert may get no tokens
    assert AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)[1]["missing_keys"] == set()
