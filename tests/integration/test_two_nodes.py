"""Where the processes of a job over two nodes are; each node has a network of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.nodes import HEAD, SECOND, TwoNodes, can_make_networks

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
from rlrun.specs.sections.job import Spec

async def main():
    spec = Spec.model_validate(json.loads(sys.argv[1]))
    plan = make_plan(spec)
    async with reserved(spec, plan) as cluster:
        ranks = cluster.launch(trainer_requests(plan, cluster.placement, RunFolder(Path(sys.argv[2]))))
        print(json.dumps([(rank.host, *await devices(rank)) for rank in ranks]))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    nodes = TwoNodes()
    try:
        nodes.start_second()
        yield nodes
        print(nodes.log[-3000:])
    finally:
        nodes.stop()


def test_ranks_follow_one_another_on_a_node_and_have_a_gpu_each(nodes: TwoNodes, tmp_path: Path) -> None:
    spec = {
        "model": {"path": "m"},
        "data": {"path": "d"},
        "trainer": {"steps": 1, "parallel": {"fsdp": 2, "tensor": 2}},
        "cluster": {"address": nodes.address, "nodes": 2, "gpus_per_node": 2, "threads": 1},
        "engine": {"type": "sglang"},
    }
    command = [*nodes.enter, sys.executable, "-c", PLACED, json.dumps(spec), str(tmp_path)]
    placed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert placed.returncode == 0, placed.stderr
    ranks = json.loads(placed.stdout)
    assert sorted((host, gpu) for host, gpu in ranks) == [(h, g) for h in (HEAD, SECOND) for g in "01"]
    assert ranks[0][0] == ranks[1][0]  # a tensor-parallel pair
    assert ranks[2][0] == ranks[3][0]
