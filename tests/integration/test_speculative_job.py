"""A whole job whose engines speculate: exact log-probs, and the same steps again from a checkpoint."""

from typing import Any

import pytest

from tests.integration.jobs import Jobs

SETTINGS: dict[str, Any] = {
    "engine__speculative": {"algorithm": "ngram", "draft_tokens": 5},
    "engine__max_running": 2,  # later samples of a group find what earlier ones wrote
    "rollout__batch_size": 4,
    "rollout__temperature": 0.2,
    "rollout__max_response_tokens": 48,
    "checkpoint__interval": 2,
}


def test_a_job_that_speculates_has_exact_log_probs(jobs: Jobs) -> None:
    ended = jobs.run("speculating", **SETTINGS, trainer__steps=2)
    assert ended.code == 0, ended.output
    for line in ended.metrics:
        assert 0.2 < line["rollout/spec_accept_rate"] <= 1
        assert line["rollout/spec_accept_length"] > 1
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4


@pytest.mark.slow
def test_a_resumed_job_that_speculates_repeats_bit_for_bit(jobs: Jobs) -> None:
    whole = jobs.run("speculating-twice", **SETTINGS, trainer__steps=4)
    assert whole.code == 0, whole.output
    curve = whole.curve
    whole.rewind(2)
    resumed = jobs.run("speculating-twice", "--resume", **SETTINGS, trainer__steps=4)
    assert resumed.code == 0, resumed.output
    assert resumed.superseded_steps() == [3, 4]
    assert resumed.curve == curve
