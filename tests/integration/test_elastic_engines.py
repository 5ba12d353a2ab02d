"""Engines that join and leave a job: they come with nodes, go with them, and die."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.ids import check_each_once, trained_ids
from tests.integration.jobs import Ended, Jobs, Running
from tests.integration.nodes import SECOND, TwoNodes, can_make_networks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_networks(), reason="this user cannot create networks (ip, unshare)"),
]

SETTINGS: dict[str, Any] = {
    "deterministic": False,
    "cluster__nodes": 2,
    "cluster__placement": "disaggregated",
    "engine__count": 3,
    "engine__min_count": 1,
    "rewards": [{"type": "slow"}],
    "trainer__steps": 100_000,
    "trainer__lr": 3e-4,  # so that samples still differ at the end
}
"""The head has room for the rank and an engine, a second node for as many engines as it has cores."""
CLOSE = {"rel": 1e-3, "abs": 1e-5}
"""Rounding depends on which requests an engine decodes together."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    nodes = TwoNodes()
    try:
        yield nodes
        print(nodes.log[-3000:])
    finally:
        nodes.stop()


@pytest.fixture
def jobs(nodes: TwoNodes, tiny_model: Path, tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path, tiny_model, nodes.address, prefix=nodes.enter) as jobs:
        yield jobs


def until_engines(running: Running, number: int) -> None:
    """Waits for two steps with so many engines; the job goes on meanwhile."""

    def steps() -> int:
        if not running.folder.metrics.exists():
            return 0
        lines = [json.loads(line) for line in running.folder.metrics.read_text().splitlines()]
        return sum(line["rollout/engines"] == number for line in lines[-2:])

    running.until(lambda: steps() == 2, f"{number} engines")
    assert running.folder.read_state()["engines"] == (number, 3)


def curve(job: Ended, steps: int) -> list[float]:
    return [line["train/loss"] for line in job.metrics[:steps]]


def test_engines_join_and_leave_and_nothing_that_is_learnt_changes(nodes: TwoNodes, jobs: Jobs) -> None:
    running = jobs.start("elastic", **SETTINGS)
    until_engines(running, 1)
    nodes.start_second()
    until_engines(running, 3)
    os.kill(running.pid("engine 0"), signal.SIGKILL)
    running.until(lambda: "engine 0 is back after" in running.output, "the killed engine")
    nodes.kill_second()
    until_engines(running, 1)
    nodes.start_second(cpus=1)
    until_engines(running, 2)
    running.signal(signal.SIGINT)
    ended = running.wait()
    nodes.kill_second()
    assert ended.code == 130, ended.output
    assert f"its node {SECOND} is lost; engine 1 leaves" in ended.output
    check_each_once(ended)
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in ended.metrics)

    steps = len(ended.metrics)
    undisturbed = {"trainer__steps": steps, "engine__count": 1, "engine__min_count": 1}
    reference = jobs.run("undisturbed", **SETTINGS | undisturbed)
    assert reference.code == 0, reference.output
    assert trained_ids(ended) == trained_ids(reference)
    assert curve(ended, steps) == pytest.approx(curve(reference, steps), **CLOSE)
