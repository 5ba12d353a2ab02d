"""Starts a job's trainer ranks and engines: every process begins before any is waited for.

Ray up ─▶ actors up (all at once) ─┬▶ ranks: import, meet at rank 0's address, load ─┬▶ all known by pid
                                   └▶ engines: import, load, listen ────────────────┘
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.runner.carriers import TrainerSetup
from rlrun.runner.cluster.actors import TrainerActor
from rlrun.runner.cluster.failures import gather_or_first_cause
from rlrun.runner.cluster.placement import Placement
from rlrun.runner.cluster.ray import Cluster, Process, Request
from rlrun.runner.cluster.start_engines import EngineHandle, engine_handles, engine_requests
from rlrun.runner.cluster.threads import thread_variables
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.errors import JobError
from rlrun.runner.model_files import ModelFiles
from rlrun.runner.plan import Plan, RankPlan
from rlrun.runner.run_folder import RunFolder
from rlrun.specs.job import Spec

_START_SECONDS = 1800.0
"""Deadline for a trainer rank to import, meet the others and load its model."""
_BOOT_SECONDS = 120.0
"""Deadline for a process to come up."""


@dataclass(frozen=True, slots=True)
class Started:
    """What runs."""

    trainers: list[Process]
    """By rank."""
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
    """Start Ray, trainer ranks and engines. JobError: the first cause of what went wrong."""
    await cluster.start()
    trainers = cluster.launch(_trainer_requests(plan, cluster.placement, folder))
    engines = cluster.launch(engine_requests(spec, plan, cluster.placement, folder))
    folders = [one.folder for one in (model, teacher) if one is not None]
    if not cluster.is_local:
        await _check_hosts(trainers, engines, [*folders, folder.path])
    starting = asyncio.create_task(_start_trainers(spec, plan, folders, trainers))
    handles = engine_handles(spec, plan, model, cluster, engines)
    serving = asyncio.create_task(gather_or_first_cause([handle.start() for handle in handles]))
    await gather_or_first_cause([starting, serving])
    await gather_or_first_cause([process.identify(_BOOT_SECONDS) for process in trainers])
    return Started(trainers, handles, serving.result())


def _trainer_requests(plan: Plan, placement: Placement, folder: RunFolder) -> list[Request]:
    size = str(len(plan.ranks))
    return [
        Request(
            f"trainer {rank.rank}",
            TrainerActor,
            seat,
            {"RANK": str(rank.rank), "WORLD_SIZE": size, **thread_variables(rank.threads)},
            folder.logs / f"trainer-{rank.rank}.log",
        )
        for rank, seat in zip(plan.ranks, placement.ranks, strict=True)
    ]


async def _start_trainers(
    spec: Spec, plan: Plan, folders: Sequence[Path], trainers: Sequence[Process]
) -> None:
    master = (trainers[0].host, await trainers[0].call("free_port", deadline=_BOOT_SECONDS))
    calls = [
        process.call("start", _trainer_setup(spec, plan, folders, rank, master), deadline=_START_SECONDS)
        for process, rank in zip(trainers, plan.ranks, strict=True)
    ]
    await gather_or_first_cause(calls)


def _trainer_setup(
    spec: Spec, plan: Plan, folders: Sequence[Path], rank: RankPlan, master: tuple[str, int]
) -> TrainerSetup:
    """`folders` are those of the policy and, where there is one, the teacher."""
    assert plan.optimizer_steps is not None
    return TrainerSetup(
        spec_json=spec.model_dump_json(),
        model_folder=str(folders[0]),
        teacher_folder=str(folders[1]) if len(folders) > 1 else None,
        rank=rank.rank,
        # a process sees only its own GPU, as device 0
        local_rank=rank.local_rank if rank.place.gpu is None else 0,
        world_size=len(plan.ranks),
        master_addr=master[0],
        master_port=master[1],
        threads=rank.threads,
        optimizer_steps=plan.optimizer_steps,
    )


async def _check_hosts(
    trainers: Sequence[Process], engines: Sequence[Process], paths: Sequence[Path]
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
        if process in engines and process.host != trainers[0].host:
            raise JobError(
                f"{process.name} was placed on {process.host} and trainer 0 on {trainers[0].host}; "
                "weights go through shared memory, so they must share a host: use cluster.nodes = 1"
            )
