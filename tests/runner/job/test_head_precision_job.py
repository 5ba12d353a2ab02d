"""Jobs in bfloat16 with and without a float32 head: how far trainer and engine are apart."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
engine = { max_running = 64, dtype = "bfloat16" }
cluster = { threads = 1 }
checkpoint = { export_hf = false }

[rollout]
batch_size = 8
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 32

[[rewards]]
type = "length"
max_tokens = 32
buffer = 32

[algorithm]
type = "grpo"

[trainer]
steps = 2
lr = 1e-4
dtype = "bfloat16"  # on some processors the default is float32
"""
LEVEL = 30.0
"""What every logit has in common: the softmax does not see it, the rounding to 8 bits does."""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose model has logits that are large and close together, as MiniMax-M1 saw them."""
    folder = tmp_path_factory.mktemp("job")
    [file] = make_tiny_model(folder / "model", scale=0.05).glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][:, 0] = 1.0
    tensors["lm_head.weight"][:, 0] = LEVEL
    save_file(tensors, file, metadata={"format": "pt"})
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.toml").write_text(SPEC)
    return folder / "job.toml"


def test_a_float32_head_brings_trainer_and_engine_together(spec: Path, tmp_path: Path) -> None:
    """Before and after an update of the weights, which travel in bfloat16 either way."""
    apart = {}
    for kind in ("model", "float32"):
        lines = run_local(spec, tmp_path / kind, [f"trainer.head_dtype={kind}"]).lines
        apart[kind] = [line["train/train_rollout_logprob_abs_diff"] for line in lines]
    for model, wide in zip(apart["model"], apart["float32"], strict=True):
        assert wide < model / 4
        assert wide < 0.003
