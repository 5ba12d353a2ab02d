"""A whole job in an environment of a user's file: its records, and steps that are repeated bit for bit."""

from typing import Any

import numpy as np
import pytest

from rlrun.runner.records.encoded_arrays import FLOAT_DTYPE, decode_array
from rlrun.runner.records.packed_lines import read_records
from rlrun.runner.records.saved_rollouts import rollout_path
from tests.integration.jobs import Jobs

WORLD = '''
import random

import rlrun


@rlrun.environment
class Letters:
    """Rewards letters, and says a random number and what a simulated user answers."""

    def tasks(self):
        return [{"id": str(n), "prompt": f"say {n}", "label": n} for n in range(32)]

    def reset(self, task):
        self.turns, self.user = 0, task.engine("user")

    async def step(self, action):
        self.turns += 1
        letters = sum(letter.isalpha() for letter in action)
        said = await self.user.chat([{"role": "user", "content": action}], max_tokens=2)
        return f"{random.random():.3f} {said}", letters / 8, self.turns == 2, {"letters": letters}
'''
SETTINGS: dict[str, object] = {
    "data": {"type": "environment", "environment": {"type": "letters.py:Letters"}},
    "algorithm__turn_rewards": "to_go",
    "rollout__function": {"type": "environment", "cross_entropy": 0.125, "engines": ["user"]},
    "rollout__batch_size": 4,
    "rollout__max_response_tokens": 64,
    "rollout__max_turn_tokens": 6,
    "rollout__stop_token_ids": list(range(0, 320, 4)),  # a quarter of all tokens, so that most turns end
    "rewards": [{"type": "noted"}],
    "trainer__steps": 4,
    "checkpoint__interval": 2,
}


def write_world(jobs: Jobs) -> dict[str, Any]:
    """Writes the environment into the jobs' folder; returns the settings of a job in it."""
    (jobs.folder / "letters.py").write_text(WORLD)
    user = {"name": "user", "type": "native", "path": str(jobs.model), "dtype": "float32"}
    return {**SETTINGS, "engines": [user]}


@pytest.fixture
def settings(jobs: Jobs) -> dict[str, Any]:
    return write_world(jobs)


def test_a_job_in_an_environment_repeats_its_steps_from_a_checkpoint(
    jobs: Jobs, settings: dict[str, Any]
) -> None:
    whole = jobs.run("whole", "--allow-local-plugins", **settings)
    assert whole.code == 0, whole.output
    for line in whole.metrics:
        assert line["rollout/info/turns"] <= 2
        assert line["rollout/reward/mean"] == pytest.approx(line["rollout/info/reward"])
        assert line["train/train_rollout_logprob_abs_diff_max"] < 1e-4
        assert line["train/loss"] == pytest.approx(line["train/pg_loss"] + line["train/ce_loss"], abs=1e-6)
        assert line["train/ce_tokens"] > 50
    predicted = [line["train/ce_loss"] / line["train/ce_tokens"] for line in whole.metrics]
    assert predicted[-1] < 0.9 * predicted[0], "the policy learns what the environment says"
    check_credit(list(read_records(rollout_path(whole.folder.rollouts, 1))))
    curve = whole.curve
    whole.rewind(2)
    resumed = jobs.run("whole", "--resume", "--allow-local-plugins", **settings)
    assert resumed.code == 0, resumed.output
    assert resumed.superseded_steps() == [3, 4]
    assert resumed.curve == curve


def check_credit(records: list[dict[str, Any]]) -> None:
    """Each turn is compared with the same turn of the prompt's other samples, from there to the end."""
    differing = 0
    for first in range(0, len(records), 4):
        group = records[first : first + 4]
        to_go = np.zeros((4, 2))
        for row, record in zip(to_go, group, strict=True):
            rewards = [reward for _, reward in record["turn_rewards"]]
            assert sum(rewards) == pytest.approx(record["reward"])
            row[: len(rewards)] = np.cumsum(rewards[::-1])[::-1]
        expected = (to_go - to_go.mean(axis=0)) / (to_go[:, 0].std(ddof=1) + 1e-6)
        for row, record in zip(expected, group, strict=True):
            ends = [end for end, _ in record["turn_rewards"]]
            advantages = decode_array(record["advantages"], FLOAT_DTYPE)[np.array(ends) - 1]
            np.testing.assert_allclose(advantages, row[: len(ends)], rtol=1e-4, atol=1e-5)
            if len(ends) == 2:
                mask, weights = (
                    decode_array(record[name], FLOAT_DTYPE) for name in ("loss_mask", "cross_entropy")
                )
                given = mask[ends[0] : ends[1]] == 0
                assert set(weights[mask > 0]) == {0} and set(weights[ends[0] + 1 :][given[1:]]) == {0.125}
            differing += len(ends) == 2 and abs(advantages[0] - advantages[1]) > 0.1
    assert differing > 4
