"""Jobs in which something hangs: before a deadline kills it, the message says where it is."""

import re

import pytest

from tests.integration.jobs import Jobs

STUCK_RANK = '''
"""GRPO whose loss hangs on rank 1 in the third step."""

import os
import time

from rlrun.plugins.algorithms.grpo import GRPO


class Stuck(GRPO):
    calls = 0

    def loss(self, inputs):
        Stuck.calls += 1
        while os.environ.get("RANK") == "1" and Stuck.calls > 2:
            time.sleep(0.1)
        return super().loss(inputs)
'''


def test_a_rank_that_waits_for_a_stuck_one_names_the_place_of_both(joining_jobs: Jobs) -> None:
    (joining_jobs.folder / "stuck.py").write_text(STUCK_RANK)
    ended = joining_jobs.run(
        "stuck-rank",
        "--allow-local-plugins",
        algorithm__type="stuck.py:Stuck",
        trainer__parallel__fsdp=2,
        trainer__steps=6,
        fault_tolerance__collective_timeout=10.0,
        fault_tolerance__trainer_restarts=0,
    )
    assert ended.code == 3, ended.output
    assert re.search(r"trainer 1: it is in loss \(stuck\.py:\d+\), called by \w+ \(rlrun/", ended.output), (
        ended.output
    )
    assert re.search(r"trainer 0: it is in \w+ \(", ended.output), ended.output
    assert " in loss\n" in (ended.folder.logs / "trainer-1.log").read_text()
    assert "(most recent call first)" in (ended.folder.logs / "engine-0.log").read_text()


@pytest.mark.slow  # the message is that of the test above, and test_scoring.py has rewards that hang
def test_a_reward_that_hangs_names_its_line(joining_jobs: Jobs) -> None:
    ended = joining_jobs.run(
        "stuck-reward",
        rewards=[{"type": "stuck"}],
        scoring__timeout=2.0,
        debug__mode="rollout",
        deterministic=False,
    )
    assert ended.code == 3, ended.output
    assert re.search(r"it is in score \(acme_rewards\.py:\d+\), called by \w+ \(rlrun/", ended.output), (
        ended.output
    )
    assert " in score\n" in (ended.folder.logs / "reward-0.log").read_text()
