"""Whole jobs with `true_on_policy`: the difference of engines and trainer is exactly zero in every step."""

import json

import pytest

from rlrun.runner.kernels.operators import load
from tests.integration.jobs import Ended, Jobs

pytestmark = pytest.mark.skipif(not load(), reason="no C++ compiler")
DIFFERENCE = "train/train_rollout_logprob_abs_diff_max"
MIXED = {
    "true_on_policy": True,
    "deterministic": False,
    "rollout__partial": True,
    "rollout__batch_size": 4,
    "rollout__oversample": 10,
    "rollout__max_prompt_tokens": 96,
    "rollout__max_response_tokens": 160,
    "rollout__max_staleness": 4,
    "engine__max_running": 16,
    "trainer__steps": 8,
    "trainer__share_prefixes": True,
    "trainer__max_tokens_per_rank": 512,
    "data__path": "long.jsonl",
}
"""Partial rollouts, which make batches uneven, and shared prefixes: prompts have about 50 tokens."""


def run_mixed(jobs: Jobs, name: str, **settings: object) -> Ended:
    rows = [{"prompt": f"{'all of the same words again ' * 2}{i}", "label": str(i)} for i in range(64)]
    (jobs.folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return jobs.run(name, **MIXED | settings)


def assert_exact(ended: Ended, steps: int) -> None:
    assert ended.code == 0, ended.output
    assert [line[DIFFERENCE] for line in ended.metrics] == [0.0] * steps


def test_a_job_on_one_rank(jobs: Jobs) -> None:
    assert_exact(jobs.run("exact", true_on_policy=True, trainer__steps=4), 4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_partial_rollouts_and_shared_prefixes_on_two_ranks(jobs: Jobs, dtype: str) -> None:
    settings = {"trainer__parallel__fsdp": 2, "trainer__dtype": dtype, "engine__dtype": dtype}
    ended = run_mixed(jobs, f"shards-{dtype}", **settings)
    assert_exact(ended, 8)
    assert any(line["rollout/off_policy_frac"] > 0 for line in ended.metrics)


@pytest.mark.slow
@pytest.mark.parametrize("degree", ["replicate", "pipeline"])
def test_other_layouts(jobs: Jobs, degree: str) -> None:
    assert_exact(run_mixed(jobs, degree, **{f"trainer__parallel__{degree}": 2}), 8)


@pytest.mark.slow
def test_the_quickstart(jobs: Jobs) -> None:
    settings = {"true_on_policy": True, "eval__interval": 100}
    ended = jobs.start("quickstart", spec="quickstart", **settings).wait()
    assert ended.code == 0, ended.output
    assert [line[DIFFERENCE] for line in ended.metrics if line["step"]] == [0.0] * 40
