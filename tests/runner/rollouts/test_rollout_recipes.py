"""The recipes of rollouts run: one step of each with a tiny model, on the native engine and a CPU."""

from pathlib import Path

import pytest

from rlrun.specs.paths import RECIPES
from tests.chat_templates import make_chat_tokenizer
from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

SMALL = [
    "rollout.batch_size=2",
    "rollout.samples_per_prompt=2",
    "rollout.max_response_tokens=32",
    "rollout.max_prompt_tokens=1500",
    "trainer.steps=1",
    "trainer.dtype=float32",
    "trainer.max_tokens_per_rank=4096",
    "engine.type=native",
    "engine.dtype=float32",
    "eval.before_training=false",
    "filters=[]",
    "checkpoint.export_hf=false",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, max_position_embeddings=2048)
    make_chat_tokenizer(folder, "qwen3")
    return folder


@pytest.mark.parametrize(
    ("recipe", "noted"), [("tools-python", "turns"), ("tools-search", "turns"), ("agent", "samples")]
)
def test_a_recipe_runs(recipe: str, noted: str, model: Path, tmp_path: Path) -> None:
    sizes = [f"eval.datasets.0.{key}" for key in (["size=2"] if recipe != "tools-search" else [])]
    spec = RECIPES / f"{recipe}.toml"
    journal = run_local(spec, tmp_path, [f"model.path={model}", *SMALL, *sizes])
    last = journal.lines[-1]
    assert last["train/train_rollout_logprob_abs_diff"] < 1e-4
    assert last[f"rollout/info/{noted}"] >= 1
    assert "eval/held-out/pass@1" in last
