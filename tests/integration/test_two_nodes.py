"""A job over two nodes with networks of their own: its order, its addresses, and the loss of a node."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlrun.runner.records.run_folder import RunFolder
from tests.fault.ids import check_each_once, trained_ids
from tests.integration.jobs import ROLLOUT_ONLY, Ended, Jobs, Running
from tests.integration.nodes import HEAD, SECOND, TwoNodes, can_make_networks
from tests.sglang_cpu.servers import ARGUMENTS, ENVIRONMENT, python
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_networks(), reason="this user cannot create networks (ip, unshare)"),
]

PLACED = """
import asyncio, json, sys
from pathlib import Path
from tests.integration.test_placed_engines import devices, reserved
from rlrun.runner.cluster.start_trainer import trainer_requests
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.records.run_folder import RunFolder
from tests.resolved_specs import resolved

async def main():
    spec = resolved(json.loads(sys.argv[1]))
    plan = make_plan(spec)
    async with reserved(spec, plan) as cluster:
        ranks = await cluster.launch(trainer_requests(plan, cluster.placement, RunFolder(Path(sys.argv[2]))))
        print(json.dumps([(rank.host, *await devices(rank)) for rank in ranks]))

asyncio.run(main())
"""

SETTINGS: dict[str, Any] = {
    "cluster__nodes": 2,
    "cluster__threads": 2,  # all of a node's cores, so that each node has one rank and one engine
    "trainer__parallel": {"fsdp": 2},
    "rewards": [{"type": "slow"}],  # steps take long enough to kill a node during them
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    nodes = TwoNodes()
    try:
        nodes.start_second()
        yield nodes
        print(nodes.log[-3000:])
    finally:
        nodes.stop()


@pytest.fixture
def jobs(nodes: TwoNodes, tiny_model: Path, tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path, tiny_model, nodes.address, prefix=nodes.enter) as jobs:
        yield jobs


def steps_of(folder: RunFolder) -> dict[int, dict[str, Any]]:
    """Returns the metrics of each step that do not depend on the clock."""
    steps = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return {
        step["step"]: {key: value for key, value in step.items() if not key.startswith("perf/")}
        for step in steps
    }


def check_addresses(nodes: TwoNodes, running: Running) -> None:
    """Asserts that the head's rank and engine listen at its address for others, not at a loopback address."""
    listening = nodes.listening_on_head()
    pids = [pid for pid in process_ids(running) if pid in listening]
    assert pids
    for pid in pids:
        assert HEAD in listening[pid], (psutil.Process(pid).cmdline(), listening[pid])
        assert not any(ip.startswith("127.") for ip in listening[pid]), (pid, listening[pid])


def process_ids(running: Running) -> list[int]:
    """Returns the ids of ranks and engines on this host."""
    ids = running.folder.read_state()["processes"].values()
    return [pid for pid in ids if psutil.pid_exists(pid)]


def placed_ranks(nodes: TwoNodes, folder: Path, **sections: object) -> list[tuple[str, str]]:
    """Returns the host of each trainer rank, and the number of its GPU there."""
    spec = {"model": {"path": "m"}, "data": {"path": "d"}, "engine": {"type": "sglang"}} | sections
    command = [*nodes.enter, sys.executable, "-c", PLACED, json.dumps(spec), str(folder)]
    placed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert placed.returncode == 0, placed.stderr
    return [tuple(pair) for pair in json.loads(placed.stdout)]


def test_ranks_follow_one_another_on_a_node_and_have_a_gpu_each(nodes: TwoNodes, tmp_path: Path) -> None:
    cluster = {"address": nodes.address, "nodes": 2, "gpus_per_node": 2, "threads": 1}
    trainer = {"steps": 1, "parallel": {"fsdp": 2, "tensor": 2}}
    ranks = placed_ranks(nodes, tmp_path, cluster=cluster, trainer=trainer)
    assert sorted((host, gpu) for host, gpu in ranks) == [(h, g) for h in (HEAD, SECOND) for g in "01"]
    assert ranks[0][0] == ranks[1][0]  # a tensor-parallel pair
    assert ranks[2][0] == ranks[3][0]


@pytest.mark.slow
def test_a_node_may_have_fewer_gpus_than_another(nodes: TwoNodes, tmp_path: Path) -> None:
    cluster = {"address": nodes.address, "nodes": 2, "gpus_per_node": 2, "node_gpus": [2, 1], "threads": 1}
    ranks = placed_ranks(nodes, tmp_path, cluster=cluster, trainer={"steps": 1, "parallel": {"fsdp": 3}})
    assert sorted(gpu for _, gpu in ranks) == ["0", "0", "1"]
    assert ranks[0][0] == ranks[1][0] != ranks[2][0]


APART: dict[str, Any] = {
    "cluster__nodes": 2,
    "cluster__threads": 1,
    "cluster__placement": "disaggregated",
    "trainer__steps": 4,
}
"""A rank and an engine on each node, with cores of their own."""


def check_agreement(ended: Ended) -> None:
    """Asserts that the engines of both nodes had each version's weights, log-prob by log-prob."""
    assert ended.code == 0, ended.output
    assert {"trainer 0", "trainer 1", "engine 0", "engine 1"} <= ended.folder.read_state()["processes"].keys()
    assert len(ended.curve) == 4
    for step in ended.curve:
        assert step["train/train_rollout_logprob_abs_diff"] < 1e-4, step
        assert step["rollout/staleness/max"] == 0
    norms = [step["train/grad_norm"] for step in ended.curve]
    assert all(norm > 1e-3 for norm in norms), "the weights change from step to step"


def test_native_engines_on_both_nodes_have_the_weights_of_each_step(nodes: TwoNodes, jobs: Jobs) -> None:
    """The second node has a /dev/shm of its own, so the weights are read from the run's folder."""
    check_agreement(jobs.run("native", trainer__parallel__fsdp=2, **APART))


def test_a_pipeline_over_both_nodes_broadcasts_to_sglang_servers_of_both(nodes: TwoNodes, jobs: Jobs) -> None:
    """Each node's rank has a stage of the model, and sends it to both servers in a group of its own."""
    ended = jobs.run(
        "sglang",
        deterministic=False,
        trainer__parallel__pipeline=2,
        engine__type="sglang",
        engine__python=python(),
        engine__environment=ENVIRONMENT,
        engine__sglang=ARGUMENTS,
        engine__weight_bucket=1,
        engine__weight_check="all",
        **APART,
    )
    check_agreement(ended)


def test_sglang_servers_of_both_nodes_get_adapters_alone(nodes: TwoNodes, jobs: Jobs) -> None:
    """They read each version from the run's folder, and apply it to the model that they started with."""
    ended = jobs.run(
        "sglang-adapters",
        deterministic=False,
        trainer__parallel__fsdp=2,
        trainer__lora={"rank": 4, "alpha": 8.0},
        trainer__lr=2e-2,
        engine__type="sglang",
        engine__python=python(),
        engine__environment=ENVIRONMENT,
        engine__sglang=ARGUMENTS,
        engine__weight_sync="disk",
        **APART,
    )
    check_agreement(ended)
    assert {step["perf/weight_sync_bytes"] for step in ended.metrics} == {29_696}


AGENT = """
import json, os, socket, sys, urllib.request
from urllib.parse import urlsplit

task = json.load(sys.stdin)
address = urlsplit(task["base_url"])
with socket.create_connection((address.hostname, address.port)) as connection:
    own = connection.getsockname()[0]
body = json.dumps({"messages": task["messages"]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(task["base_url"] + "/chat/completions", body, headers)
json.load(urllib.request.urlopen(request))["choices"][0]["message"]
print(json.dumps({"on_second": float(own == sys.argv[1])}))
"""


def test_an_agent_on_the_second_node_reaches_the_policy(nodes: TwoNodes, jobs: Jobs) -> None:
    settings: dict[str, Any] = {
        "type": "agent",
        "command": [*nodes.enter_second, sys.executable, "-c", AGENT, SECOND],
        "host": "10.77.0.0/24",
    }
    ended = jobs.run("agent", rollout__function=settings, cluster__nodes=2, trainer__steps=2, **ROLLOUT_ONLY)
    assert ended.code == 0, ended.output
    assert [step["rollout/info/on_second"] for step in ended.curve] == [1.0, 1.0]


def test_a_job_waits_for_another_node_or_resumes_with_one_bit_for_bit(nodes: TwoNodes, jobs: Jobs) -> None:
    settings = SETTINGS | {"trainer__steps": 100, "fault_tolerance__node_timeout": 2.0}
    running = jobs.start("lost", **settings)
    running.until_step(6)
    check_addresses(nodes, running)
    nodes.kill_second()
    ended = running.wait()
    assert ended.code == 69, ended.output
    assert f"node {SECOND} is lost; waiting up to 2 s for another one in its place" in ended.output
    [failed] = [line for line in ended.output.splitlines() if line.startswith("failed:")]
    assert f"node {SECOND} of the cluster is lost" in failed
    assert "launch again with --resume" in failed
    assert "Traceback" not in ended.output
    before = steps_of(ended.folder)
    assert max(before) > 4  # later than the checkpoint

    nodes.start_second()
    settings |= {"trainer__steps": 16, "fault_tolerance__node_timeout": 120.0}
    running = jobs.start("lost", "--resume", **settings)
    running.until(lambda: f"step {max(before) + 1}/16" in running.output, "a step beyond the first loss")
    nodes.kill_second()
    nodes.start_second()
    resumed = running.wait()
    assert resumed.code == 0, resumed.output
    assert "the trainer is back after" in resumed.output
    after = steps_of(resumed.folder)
    assert list(after) == list(range(1, 17))
    assert {step: after[step] for step in before} == before


def test_ranks_become_fewer_and_more_and_learn_the_same(nodes: TwoNodes, jobs: Jobs) -> None:
    """2 -> 1 -> 2 ranks: a node is lost, the run continues on the other one, and on both when it is back."""
    settings = SETTINGS | {
        "deterministic": False,
        "trainer__lr": 3e-4,
        "trainer__parallel": {"fsdp": 2, "min_fsdp": 1},
        "checkpoint__interval": 1,
        "fault_tolerance__node_timeout": 2.0,
    }
    running = jobs.start("ranks", **settings, trainer__steps=100)
    running.until_step(3)
    nodes.kill_second()
    assert running.wait().code == 69

    running = jobs.start("ranks", "--resume", **settings, trainer__steps=100)
    running.until(lambda: "the trainer has 1 of 2 ranks (fsdp = 1, at least 1)" in running.output, "one rank")
    steps = len(running.folder.metrics.read_text().splitlines()) + 3
    running.until_step(steps)
    assert running.folder.read_state()["ranks"] == (1, 2)
    running.signal(signal.SIGINT)
    assert running.wait().code == 130

    nodes.start_second()
    steps = running.folder.read_state()["step"] + 3
    ended = jobs.run("ranks", "--resume", **settings, trainer__steps=steps)
    assert ended.code == 0, ended.output
    assert ended.folder.read_state()["ranks"] == (2, 2)
    check_each_once(ended)

    undisturbed = jobs.run("undisturbed", **settings, trainer__steps=steps)
    assert undisturbed.code == 0, undisturbed.output
    assert trained_ids(ended) == trained_ids(undisturbed)
    losses = [[line["train/loss"] for line in job.metrics] for job in (ended, undisturbed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-5)
