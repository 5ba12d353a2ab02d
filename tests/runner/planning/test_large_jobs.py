"""Large published models on the GPUs of docs/families.md: what fits colocated, and what does not."""

from typing import Any

import pytest

from rlrun.models.config_json import architecture
from rlrun.plugins.validation import needs_of
from rlrun.runner.planning.hardware import GIB, find_gpu
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.sizing import Sizing, size_job
from rlrun.runner.planning.step_time import PlannedJob, default_workload
from tests.data.published_models import PUBLISHED
from tests.docs.pages import ROOT
from tests.resolved_specs import resolved

DIVIDED = {"enable_dp_attention": True, "dp_size": 8}
JOBS: dict[str, dict[str, Any]] = {
    "Qwen3-VL-8B": {"parallel": {"fsdp": 8}, "max_cache_tokens": 120_000},
    "Qwen3.5-35B-A3B": {"parallel": {"fsdp": 8, "expert": 8}, "tensor": 4},
    "GLM-4.7": {"nodes": 8, "parallel": {"fsdp": 8, "tensor": 8, "expert": 32}, "tensor": 16},
    "Kimi-K2": {
        "nodes": 32,
        "parallel": {"fsdp": 32, "tensor": 8, "expert": 128},
        "tensor": 64,
        "sglang": DIVIDED,
    },
}
"""The settings of the table: one server of `tensor` GPUs beside the next, the trainer on all of them."""
OFFLOADED = ("Qwen3.5-35B-A3B", "GLM-4.7", "Kimi-K2")
"""Models that need `trainer.offload = "optimizer"`."""


def plan(name: str, offload: str) -> Sizing:
    job = JOBS[name]
    engine = {"type": "sglang", "max_running": 64, "max_cache_tokens": job.get("max_cache_tokens", 200_000)}
    engine |= {"tensor": job.get("tensor", 1), "sglang": job.get("sglang", {})}
    document = {
        "model": {"path": name},
        "data": {"path": "rows.jsonl"},
        "rewards": [{"type": "math"}],
        "rollout": {"batch_size": 128, "max_prompt_tokens": 2048, "max_response_tokens": 8192},
        "trainer": {
            "steps": 100,
            "dtype": "bfloat16",
            "activation_checkpointing": "full",
            "max_tokens_per_rank": 10_240,
            "parallel": job["parallel"],
            "offload": offload,
        },
        "engine": engine,
        "cluster": {"nodes": job.get("nodes", 1), "gpus_per_node": 8},
    }
    model = architecture(PUBLISHED[name][0])
    spec = resolved(document, model)
    made = make_plan(spec, cores=64)
    return size_job(
        PlannedJob(spec, made, needs_of(spec), model, find_gpu("H100-80GB"), default_workload(spec))
    )


@pytest.mark.parametrize("name", JOBS)
def test_large_models_fit_as_documented(name: str) -> None:
    sizing = plan(name, "optimizer" if name in OFFLOADED else "none")
    assert not sizing.warnings
    page = (ROOT / "docs" / "families.md").read_text("utf-8")
    row, *_ = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    sizes = [phase.bytes for phase in sizing.phases] + [sizing.offloaded * 8]
    assert [cell.strip() for cell in row.split("|")[-5:-1]] == [f"{size / GIB:.0f}" for size in sizes]


@pytest.mark.parametrize("name", ["GLM-4.7", "Kimi-K2"])
def test_the_largest_do_not_fit_with_their_optimizer_on_the_gpus(name: str) -> None:
    sizing = plan(name, "none")
    assert any(warning.startswith("weight update needs") for warning in sizing.warnings)
    assert sizing.warnings[-1].startswith('to fit, set trainer.offload = "optimizer": then training')
