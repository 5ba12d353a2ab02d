"""Starts a job's trainer ranks and engines: every process begins before any is waited for.

Ray up ─▶ actors up (all at once) ─┬▶ ranks: import, meet at rank 0's address, load ─┬▶ all known by pid
                                   └▶ engines: import, load, listen ────────────────┘
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.runner.cluster.failures import gather_or_first_cause
from rlrun.runner.cluster.ray import Cluster, Process
from rlrun.runner.cluster.start_engines import EngineHandle, engine_handles, engine_requests
from rlrun.runner.cluster.start_trainer import TrainerRanks, trainer_requests
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.errors import JobError
from rlrun.runner.model_files import ModelFiles
from rlrun.runner.plan import Plan
from rlrun.runner.run_folder import RunFolder
from rlrun.specs.job import Spec
from rlrun.specs.weight_sync import shares_memory

_BOOT_SECONDS = 120.0
"""Deadline for a process to come up."""


@dataclass(frozen=True, slots=True)
class Started:
    """What runs."""

    trainer: TrainerRanks
    engines: list[EngineHandle]
    clients: list[EngineClient]
    """One of each engine."""


async def start_processes(
    spec: Spec,
    plan: Plan,
    model: ModelFiles,
    folder: RunFolder,
    cluster: Cluster,
    *,
    teacher: ModelFiles | None = None,
) -> Started:
    """Start Ray, and the ranks and engines of the plan. JobError: the first cause of what went wrong."""
    await cluster.start()
    processes = cluster.launch(trainer_requests(plan, cluster.placement, folder))
    engines = cluster.launch(engine_requests(spec, plan, cluster.placement, folder))
    folders = [one.folder for one in (model, teacher) if one is not None]
    if not cluster.is_local:
        await _check_hosts(spec, processes, engines, [*folders, folder.path])
    trainer = TrainerRanks(cluster, processes, spec, plan, folders=folders, weights=folder.path / "weights")
    handles = engine_handles(spec, plan, model, cluster, engines)
    serving = asyncio.create_task(gather_or_first_cause([handle.start() for handle in handles]))
    await gather_or_first_cause([asyncio.create_task(trainer.start()), serving])
    return Started(trainer, handles, serving.result())


async def _check_hosts(
    spec: Spec, trainers: Sequence[Process], engines: Sequence[Process], paths: Sequence[Path]
) -> None:
    """On a cluster that we joined: every host sees the files, and engines share rank 0's memory."""
    processes = [*trainers, *engines]
    names = [str(path) for path in paths]
    missing = await gather_or_first_cause(
        [process.call("missing", names, deadline=_BOOT_SECONDS) for process in processes]
    )
    for process, unseen in zip(processes, missing, strict=True):
        if unseen:
            raise JobError(
                f"{process.name} on {process.host} does not see {unseen[0]}; model.path and runs_dir must "
                "lie on a file system that all nodes of the job share"
            )
        apart = process in engines and trainers and process.host != trainers[0].host
        if apart and shares_memory(spec):
            raise JobError(
                f"{process.name} was placed on {process.host} and trainer 0 on {trainers[0].host}; "
                "weights go through shared memory, so they must share a host: use cluster.nodes = 1, or with "
                'SGLang engine.weight_sync = "broadcast"'
            )
