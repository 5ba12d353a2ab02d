"""Whole jobs whose trainer computes each prompt once: the same learning as without, resumed to the bit."""

import json

import pytest

from tests.integration.jobs import Ended, Jobs

METRICS = ("train/loss", "train/grad_norm", "train/entropy", "rollout/reward/mean")
SETTINGS = {
    "data__path": "long.jsonl",
    "rollout__max_prompt_tokens": 96,
    "trainer__steps": 3,
    "checkpoint__interval": 1,
    "trainer__max_tokens_per_rank": 512,
}


@pytest.fixture(scope="module")
def ended(jobs: Jobs) -> dict[str, Ended]:
    """Jobs with shared prefixes, which is the default, and without; prompts have about 50 tokens."""
    rows = [{"prompt": f"{'all of the same words again ' * 2}{i}", "label": str(i)} for i in range(64)]
    (jobs.folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    started = {
        "shared": jobs.start("shared", **SETTINGS),
        "separate": jobs.start("separate", trainer__share_prefixes=False, **SETTINGS),
    }
    return {name: job.wait() for name, job in started.items()}


def test_the_first_step_is_the_same(ended: dict[str, Ended]) -> None:
    for job in ended.values():
        assert job.code == 0, job.output
    separate, shared = (ended[name].curve[0] for name in ("separate", "shared"))
    for name in METRICS:
        assert shared[name] == pytest.approx(separate[name], rel=1e-4, abs=1e-5), name
    assert shared != separate, "sums are rounded in another order"


def test_the_job_says_why_it_shares_prefixes(ended: dict[str, Ended]) -> None:
    reason = "trainer.share_prefixes is on: 4 samples share a prompt; 2.8 times fewer tokens"
    assert reason in " ".join(ended["shared"].output.split())
    assert "trainer.share_prefixes is" not in ended["separate"].output


def test_engine_and_trainer_agree_after_every_update(ended: dict[str, Ended]) -> None:
    for line in ended["shared"].metrics:
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
    assert len(ended["shared"].metrics) == 3


@pytest.mark.slow
def test_a_job_repeats_a_step_bit_for_bit(jobs: Jobs, ended: dict[str, Ended]) -> None:
    curve = ended["shared"].curve
    ended["shared"].rewind(2)
    resumed = jobs.run("shared", "--resume", **SETTINGS)
    assert resumed.code == 0, resumed.output
    assert resumed.superseded_steps() == [3]
    assert resumed.curve == curve
