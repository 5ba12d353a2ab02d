"""A whole job in an environment of a user's file: its records, and a kill and a resumption bit for bit."""

import signal
from pathlib import Path

import pytest

from tests.integration.jobs import Jobs

WORLD = '''
import os
import random
import time
from pathlib import Path

import rlrun


@rlrun.environment
class Letters:
    """Rewards letters, and says a random number. From the fifth step on it waits for HOLD to go."""

    def tasks(self):
        return [{"id": str(n), "prompt": f"say {n}", "label": n} for n in range(32)]

    def reset(self, task):
        self.turns, prompt = 0, int(task.id.partition("-")[0])
        while "HOLD" in os.environ and prompt >= 16 and Path(os.environ["HOLD"]).exists():
            time.sleep(0.01)

    def step(self, action):
        self.turns += 1
        letters = sum(letter.isalpha() for letter in action)
        return f"{random.random():.3f}", letters / 8, self.turns == 2, {"letters": letters}
'''
SETTINGS: dict[str, object] = {
    "data": {"type": "environment", "environment": {"type": "letters.py:Letters"}},
    "rollout__function": {"type": "environment"},
    "rollout__batch_size": 4,
    "rollout__max_response_tokens": 64,
    "rollout__max_turn_tokens": 6,
    "rewards": [{"type": "noted"}],
    "trainer__steps": 6,
    "checkpoint__interval": 2,
}


@pytest.fixture
def world(jobs: Jobs) -> Path:
    path = jobs.folder / "letters.py"
    path.write_text(WORLD)
    return path


def test_a_job_in_an_environment_is_the_same_killed_and_resumed_or_not(jobs: Jobs, world: Path) -> None:
    whole = jobs.run("whole", "--allow-local-plugins", **SETTINGS)
    assert whole.code == 0, whole.output
    for line in whole.metrics:
        assert line["rollout/info/turns"] <= 2
        assert line["rollout/reward/mean"] == pytest.approx(line["rollout/info/reward"])
        assert line["train/train_rollout_logprob_abs_diff_max"] < 1e-4
    hold = jobs.folder / "hold"
    hold.touch()
    jobs.environment["HOLD"] = str(hold)
    killed = jobs.start("killed", "--allow-local-plugins", **SETTINGS)
    killed.until_step(3)
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    hold.unlink()
    resumed = jobs.run("killed", "--resume", "--allow-local-plugins", **SETTINGS)
    assert resumed.code == 0, resumed.output
    assert resumed.curve == whole.curve
