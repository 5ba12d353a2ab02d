"""Every shipped spec, and the specs that tests start from, validate and plan; those for GPUs fit them."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import architecture, with_vision_tower
from rlrun.plugins.validation import load_checked_spec, needs_of
from rlrun.runner.planning.hardware import find_gpu
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.sizing import size_job
from rlrun.runner.planning.step_time import PlannedJob, default_workload
from rlrun.specs.paths import RECIPES
from rlrun.specs.reading import engine_types
from tests.models.test_vision import PUBLISHED
from tests.resolved_specs import resolved

HERE = Path(__file__).parent
SHIPPED = sorted(RECIPES.glob("*.toml"))
_QWEN3 = {
    "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip


def qwen3(hidden: int, intermediate: int, layers: int, heads: int, **others: Any) -> Architecture:
    shape = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers}
    return architecture(_QWEN3 | shape | {"num_attention_heads": heads} | others)


MODELS = {
    "Qwen/Qwen3-0.6B": qwen3(1024, 3072, 28, 16, tie_word_embeddings=True),
    "Qwen/Qwen3-1.7B": qwen3(2048, 6144, 28, 16, tie_word_embeddings=True),
    "Qwen/Qwen3-4B": qwen3(2560, 9728, 36, 32, tie_word_embeddings=True),
    "Qwen/Qwen3-8B": qwen3(4096, 12288, 36, 32),
    "Qwen/Qwen3-30B-A3B": qwen3(
        2048, 6144, 48, 32, model_type="qwen3_moe", num_key_value_heads=4, moe_intermediate_size=768,
        num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
    ),
    "Qwen/Qwen2.5-VL-3B-Instruct": architecture(PUBLISHED),
}  # fmt: skip


@pytest.mark.parametrize(
    "spec", [*SHIPPED, HERE / "base.toml", HERE / "full.toml"], ids=lambda path: path.stem
)
def test_validates_and_plans(spec: Path) -> None:
    plan = make_plan(resolved(load_checked_spec([spec]).spec), rows=100_000, cores=2)
    assert plan.optimizer_steps
    assert plan.ranks


def profiles() -> list[tuple[Path, str]]:
    documents = {path: tomli.loads(path.read_text("utf-8")) for path in SHIPPED}
    return [(path, name) for path, document in documents.items() for name in document.get("profiles", {})]


@pytest.mark.parametrize(("spec", "profile"), profiles(), ids=str)
def test_profiles_validate_and_plan(spec: Path, profile: str) -> None:
    assert make_plan(resolved(load_checked_spec([spec], (), [profile]).spec), rows=100_000, cores=2).ranks


@pytest.mark.parametrize("sglang", [True, False], ids=["sglang", "no-sglang"])
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_recipes_fit_the_gpus_they_name(path: Path, sglang: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_types, "is_installed", lambda package: sglang)
    spec = load_checked_spec([path]).spec
    if spec.model.path.startswith(str(RECIPES)):
        return  # the quickstart's, for a laptop
    model = with_vision_tower(MODELS[spec.model.path], spec.trainer.given("vision_tower"))
    teacher = MODELS[spec.teacher.path] if spec.teacher else None
    spec = resolved(spec, model, *filter(None, [teacher]))
    gpu = find_gpu("A100-40GB" if path.stem == "grpo-1gpu" else "A100-80GB")
    plan = make_plan(spec, rows=100_000, cores=8)
    job = PlannedJob(spec, plan, needs_of(spec), model, gpu, default_workload(spec), teacher)
    assert size_job(job).warnings == ()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_recipes_explain_their_numbers(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert lines[0].endswith("."), "rlrun recipes shows the first line"
    for before, line in pairwise(lines):
        if re.match(r"\w+ = -?[\d\[]", line):
            assert "#" in line or before.startswith("#"), f"{path.name}: {line}"
