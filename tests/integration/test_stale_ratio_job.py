"""Asynchronous jobs with several optimizer steps weigh stale samples where `old_log_probs` is unset."""

import json
from typing import Any

import pytest

from rlrun.plugins.validation import load_checked_spec
from tests.integration.jobs import Jobs, toml
from tests.integration.test_async_job import ASYNC

STALE: dict[str, Any] = ASYNC | {
    "rollout__max_staleness": 2,
    "trainer__optimizer_steps": 2,
    "trainer__steps": 6,
    "trainer__lr": 1e-2,
}
WRITTEN = {
    "trainer__old_log_probs": "rollout",
    "trainer__share_prefixes": True,
    "trainer__global_batch_size": 16,
    "trainer__vision_tower": "none",
    "rollout__oversample": 8,
    "engine__sleep": False,
}
"""The values of unset keys of such a job."""


def test_unset_keys_correct_stale_samples(jobs: Jobs) -> None:
    generated = jobs.run("stale", **STALE)
    assert generated.code == 0, generated.output
    assert max(line["rollout/staleness/max"] for line in generated.metrics) >= 1
    assert "stale samples are not corrected" not in generated.output
    for line in generated.metrics:
        is_stale = line["rollout/staleness/max"] > 0
        assert line["train/approx_kl"] != 0, (
            "the second optimizer step has other weights, even without staleness"
        )
        assert not is_stale or abs(line["train/train_rollout_logprob_abs_diff"]) > 1e-3
    assert max(abs(line["train/approx_kl"]) for line in generated.metrics) > 1e-3
    resolved = json.loads(generated.folder.lock.read_text())["spec"]
    keys = {name: name.split("__") for name in WRITTEN}
    assert {name: resolved[section][key] for name, (section, key) in keys.items()} == WRITTEN


def test_a_ratio_to_the_trainers_log_probs_is_warned_of(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(jobs.folder / "site"))
    settings = STALE | {"trainer__steps": 1, "trainer__old_log_probs": "trainer"}
    overrides = [f"{name.replace('__', '.')}={toml(value)}" for name, value in settings.items()]
    warnings = load_checked_spec([jobs.folder / "job.toml"], overrides).warnings()
    assert any("stale samples are not corrected" in str(warning) for warning in warnings)
