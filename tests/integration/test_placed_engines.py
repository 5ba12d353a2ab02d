"""Ray places ranks and servers on GPUs that it is told of; nothing computes on them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rlrun.runner.cluster.actor import visible_gpus
from rlrun.runner.cluster.engine_setups import policy_model_setup
from rlrun.runner.cluster.placement import place
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.ray_process import Process
from rlrun.runner.cluster.scratch import scratch_folder
from rlrun.runner.cluster.start_engines import engine_requests, launch_engines
from rlrun.runner.cluster.start_trainer import trainer_requests
from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.device_map import DeviceLocation
from rlrun.runner.planning.plan import Plan, make_plan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved
from tests.sglang_cpu.log_probs import largest_difference
from tests.sglang_cpu.policies import LocalPolicy
from tests.sglang_cpu.servers import ARGUMENTS, ENVIRONMENT, python
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE

PROMPT = np.arange(5, 25, dtype=np.int32)
LAYOUTS: dict[str, dict[str, Any]] = {
    "colocated": {"gpus_per_node": 2},
    "disaggregated": {"gpus_per_node": 4, "placement": "disaggregated"},
}


def spec_of(address: str, cluster: dict[str, Any], **engine: Any) -> Spec:
    """Two ranks, and one server of two GPUs."""
    return resolved(
        {
            "model": {"path": "m"},
            "data": {"path": "d"},
            "rollout": {"max_prompt_tokens": 64, "max_response_tokens": 64},
            "trainer": {"steps": 1, "parallel": {"fsdp": 2}},
            "engine": {"type": "sglang", "tensor": 2, **engine},
            "cluster": {"address": address, **cluster},
        }
    )


@asynccontextmanager
async def reserved(spec: Spec, plan: Plan) -> AsyncIterator[Cluster]:
    with scratch_folder() as scratch:
        cluster = Cluster(spec.cluster, place(plan), scratch)
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.close()


async def devices(process: Process) -> Sequence[str]:
    """Returns the ids of the GPUs that a process uses: those given to a server, else those that CUDA sees."""
    await process.identify(PATIENCE)
    seen: str = await process._actor.__ray_call__.remote(lambda _: visible_gpus())
    assert not process.gpus or process.gpus[0] == seen
    return process.gpus or (seen,)


@pytest.mark.parametrize("name", LAYOUTS)
async def test_processes_that_share_a_gpu_in_the_plan_share_it_in_ray(
    name: str, ray_cluster: str, tmp_path: Path
) -> None:
    spec = spec_of(ray_cluster, LAYOUTS[name])
    plan, folder = make_plan(spec, cores=4), RunFolder(tmp_path)
    async with reserved(spec, plan) as cluster:
        ranks = await cluster.launch(trainer_requests(plan, cluster.placement, folder))
        requests = engine_requests(spec.engine, plan.engines, cluster.placement.engines, folder)
        [server] = await cluster.launch(requests)
        found: defaultdict[DeviceLocation, set[str]] = defaultdict(set)
        planned = [*((rank.location,) for rank in plan.ranks), plan.engines[0].locations]
        for places, process in zip(planned, [*ranks, server], strict=True):
            for place_of_it, device in zip(places, await devices(process), strict=True):
                found[place_of_it].add(device)
        assert [len(ids) for ids in found.values()] == [1] * spec.cluster.gpus_per_node
        assert len(set.union(*found.values())) == spec.cluster.gpus_per_node
        assert set.union(*found.values()) <= {"4", "5", "6", "7"}  # the node's own names of them
        [again] = await cluster.replace([server])
        assert await devices(again) == server.gpus


async def test_a_job_on_cpus_sees_none_of_the_gpus_of_its_host(ray_cluster: str, tmp_path: Path) -> None:
    """The other processes of this host may use them, and torch would take one where it sees one."""
    spec = spec_of(ray_cluster, {})
    plan, folder = make_plan(spec, cores=4), RunFolder(tmp_path)
    async with reserved(spec, plan) as cluster:
        requests = engine_requests(spec.engine, plan.engines, cluster.placement.engines, folder)
        processes = await cluster.launch([trainer_requests(plan, cluster.placement, folder)[0], *requests])
        assert [await devices(process) for process in processes] == [("",), ("",)]


def tree(pids: Sequence[int | None]) -> list[psutil.Process]:
    """Processes and all that they started."""
    own = [psutil.Process(pid) for pid in pids if pid is not None]
    return [*own, *(child for one in own for child in one.children(recursive=True))]


async def check_generation(client: EngineClient, model: Path, version: int) -> None:
    request = GenerateRequest("r", PROMPT, (0, 1), Sampling(24, stop_token_ids=(1,)))
    answers = await client.generate(request)
    assert {span.version for one in answers for span in one.versions} == {version}
    assert largest_difference(model, PROMPT, answers) < 1e-4


@pytest.mark.slow
async def test_a_server_of_two_nodes_is_one_server(ray_cluster: str, tmp_path: Path) -> None:
    """Both parts are on this host, on a CPU: they generate, take new weights, and end together."""
    models = [make_tiny_model(tmp_path / str(seed), seed=seed, vocab=4160) for seed in range(2)]
    spec = spec_of(
        ray_cluster,
        {"nodes": 2, "gpus_per_node": 1},
        python=python(),
        dtype="float32",
        max_cache_tokens=8192,
        environment=ENVIRONMENT | {"SGLANG_CPU_OMP_THREADS_BIND": "0-1"},
        sglang=ARGUMENTS | {"device": "cpu"},
    )
    plan = make_plan(spec, cores=4)
    async with reserved(spec, plan) as cluster:
        served = policy_model_setup(spec, plan, ModelFiles(models[0], None), tmp_path)
        slots, folder = cluster.placement.engines, RunFolder(tmp_path / "run")
        [handle] = await launch_engines(spec, served, plan.engines, slots, cluster, folder=folder)
        assert len(handle.processes) == 2
        async with await handle.start() as client:
            await check_generation(client, models[0], 0)
            pool = EnginePool([client])
            for number, way in enumerate(("tensor", "broadcast")):
                policy = LocalPolicy(models[0], tmp_path, tensor=2, weight_sync=way)
                update = policy.write(models[1 - number], 1 + number)
                assert await pool.update_weights(update) == 1 + number
                await check_generation(client, models[1 - number], 1 + number)
                policy.writer.close()
        before = tree([process.pid for process in handle.processes])
        further = tree([handle.processes[1].pid])[1:]
        further[0].kill()
        with pytest.raises(JobError, match=r"engine 0.* failed: EngineError: the SGLang server ended"):
            async with asyncio.timeout(PATIENCE):
                await handle.watch()
        async with await handle.restart() as client:
            assert not [one for one in before if one.is_running()]
            await check_generation(client, models[0], 0)
