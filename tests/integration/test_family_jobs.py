"""Jobs of families whose blocks other families have: native engines, a resumed run, an export.

The tokenizer is one with code of its own, and the checkpoint has layers that predict further tokens.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.coded_tokenizer import NAME, make_coded_tokenizer
from tests.integration.jobs import Jobs
from tests.tiny_models import make_tiny_model

FURTHER = {
    "deepseek_v3": "model.layers.4.eh_proj.weight",
    "deepseek_v32": "model.layers.2.eh_proj.weight",
    "glm_moe_dsa": "model.layers.2.self_attn.indexer.wk.weight",
    "glm4_moe": "model.layers.2.eh_proj.weight",
    "mimo": "model.mtp_layers.0.input_proj.weight",
}
"""A tensor of the layer that predicts further tokens; MiniMax-M2's is not published."""
SETTINGS = {"model__trust_remote_code": True, "checkpoint__interval": 1, "trainer__parallel__fsdp": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "kimi_k2",
        "mimo",
        "minimax_m2",
    ],
)
def test_a_resumed_job_trains_and_exports_what_its_engines_serve(
    family: str, jobs: Jobs, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", family, scale=0.1, pad_token_id=None)
    code = make_coded_tokenizer(model)
    before = load_file(model / "model.safetensors")
    further = {FURTHER[family]: torch.randn(3, 5)} if family in FURTHER else {}
    save_file(before | further, model / "model.safetensors", {"format": "pt"})
    settings = SETTINGS | {"model__path": str(model)}
    first = jobs.run(family, **settings, trainer__steps=2)
    assert first.code == 0, first.output
    assert f"may run {code}" in first.output.replace("\n", "")
    locked = json.loads((first.folder.path / "spec.lock.json").read_text())
    assert [file["name"] for file in locked["model"]["code"]] == [NAME]
    ended = jobs.run(family, "--resume", **settings, trainer__steps=3, checkpoint__export_hf=True)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == [1, 2, 3]
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in ended.metrics)
    exported = load_file(ended.folder.path / "model" / "model.safetensors")
    assert exported.keys() == before.keys() | further.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in further.items())
    assert any(not torch.equal(exported[name], tensor) for name, tensor in before.items())
    AutoModelForCausalLM.from_pretrained(ended.folder.path / "model")
    code.write_text(code.read_text() + "# changed\n")
    refused = jobs.run(family, "--resume", **settings, trainer__steps=4)
    assert refused.code != 0
    assert f"changed since the run began: {NAME}" in " ".join(refused.output.split())
