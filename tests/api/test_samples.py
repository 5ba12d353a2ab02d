"""Samples of a run as a data frame, with their token arrays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlrun.api.runs import Run
from rlrun.plugins.types import Group
from rlrun.runner.records.saved_rollouts import map_records, rollout_path, write_records
from tests.runner.loop_fakes import sample

ARRAYS = ("response_tokens", "log_probs", "loss_mask", "advantages", "prompt_tokens", "trainer_log_probs")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose step 1 has all arrays, and whose step 2 has none."""
    first = sample(3, 0, 0.5)
    trained = replace(first, advantages=np.array([0.5] * len(first.tokens), np.float32))
    trained.policy_log_probs = trained.log_probs - np.float32(0.25)
    (tmp_path / "rollouts").mkdir()
    pairs = [(Group(first.prompt, [trained]), trained)]
    write_records(rollout_path(tmp_path / "rollouts", 1), map_records(pairs, whole=True))
    records = [
        {k: v for k, v in record.items() if k not in ARRAYS} for record in map_records(pairs, whole=False)
    ]
    write_records(rollout_path(tmp_path / "rollouts", 2), records)
    return Run(tmp_path)


def test_samples_have_arrays_where_they_are_asked_for(run: Run) -> None:
    (row,) = run.samples(1, arrays=True).itertuples()
    expected = sample(3, 0, 0.5)
    assert row.response_tokens.tolist() == expected.tokens.tolist()
    assert row.prompt_tokens.tolist() == expected.prompt.tokens.tolist()
    assert row.log_probs.dtype == np.float32
    assert np.array_equal(row.log_probs, expected.log_probs)
    assert np.allclose(row.log_probs - row.trainer_log_probs, 0.25)
    assert row.advantages.tolist() == [0.5] * len(expected.tokens)
    assert row.loss_mask.tolist() == expected.loss_mask.tolist()
    assert row.reward == expected.reward


def test_samples_without_arrays_and_as_they_are_stored(run: Run) -> None:
    whole = run.samples(arrays=True)
    assert [whole[name].isna().tolist() for name in ARRAYS] == [[False, True]] * len(ARRAYS)
    assert isinstance(run.samples(1).response_tokens[0], str)


def test_a_step_without_samples_is_named(run: Run) -> None:
    with pytest.raises(ValueError, match=r"has no samples of step 7; it has those of \[1, 2\]"):
        run.samples(7)
