"""`true_on_policy` on GPUs: a job that is accepted, its warning, and the arguments of its servers."""

from pathlib import Path

import pytest

from benchmarks.gpu.job import EXACT
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.derived.on_policy_target import SERVER_ARGUMENTS, target_arguments
from rlrun.specs.rules.exact_rules import exact_servers
from rlrun.specs.sections.job import Spec

BASE = Path(__file__).parent / "base.toml"
ON_GPUS = (
    "engine.type=sglang",
    "cluster.gpus_per_node=1",
    *(f"{key}={value}" for key, value in EXACT.items()),
)


def test_the_job_of_the_gpu_kit_is_accepted_with_a_warning() -> None:
    loaded = load_checked_spec([BASE], ON_GPUS)
    assert [(warning.key, "never run on a GPU" in str(warning)) for warning in loaded.warnings()] == [
        ("true_on_policy", True)
    ]
    assert target_arguments(loaded.spec) == SERVER_ARGUMENTS


@pytest.mark.parametrize("overrides", [(), ("true_on_policy=true",), ("cluster.gpus_per_node=1",)])
def test_other_jobs_start_their_servers_without_the_target(overrides: tuple[str, ...]) -> None:
    spec: Spec = load_checked_spec([BASE], overrides).spec
    assert not target_arguments(spec)
    assert not list(exact_servers(spec))


@pytest.mark.parametrize(
    ("override", "is_accepted"),
    [
        ("engine.sglang.attention_backend=fa3", True),
        ("engine.sglang.page-size=1", True),
        ("engine.sglang.schedule_policy=lpm", True),
        ("trainer.parallel.fsdp=1", True),
        ("deterministic=true", True),
        ("engine.sglang.attention-backend=triton", False),
        ("engine.sglang.kv_cache_dtype=fp8_e5m2", False),
        ("engine.sglang.enable_torch_compile=true", False),
        ("trainer.flash_attention=FA2", False),
        ("trainer.share_prefixes=true", False),
        ("rollout.mode=async", False),
    ],
)
def test_settings_that_change_sums_are_refused(override: str, is_accepted: bool) -> None:
    if is_accepted:
        load_checked_spec([BASE], (*ON_GPUS, override))
        return
    with pytest.raises(ValueError, match="true_on_policy"):
        load_checked_spec([BASE], (*ON_GPUS, override))
