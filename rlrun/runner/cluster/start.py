"""Starts a job's trainer ranks and engines: every process begins to start before any is waited for.

Ray up ─▶ actors up (all at once) ─┬▶ ranks: import, meet at rank 0's address, load ─┬▶ all known by pid
                                   ├▶ engines: import, load, listen ────────────────┤
                                   └▶ external engines: asked what they serve ──────┘
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.plugins.engines import Address
from rlrun.runner.cluster.engine_setups import named_model_setup, policy_model_setup
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.ray_process import Process
from rlrun.runner.cluster.start_engines import EngineHandle, engine_handles, engine_requests
from rlrun.runner.cluster.start_trainer import TrainerRanks, trainer_requests
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.interfaces import Timed
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.external import ExpectedModel, ExternalEngine
from rlrun.runner.host.background import in_background
from rlrun.runner.host.cpp_build import ENGINE_OPERATORS, TRAINER_OPERATORS, is_built
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.plan import Plan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.request_deadlines import answer_timeout
from rlrun.specs.derived.weight_sync import shares_memory
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec

_BOOT_SECONDS = 120.0
"""Deadline for a process to come up."""

Handle = EngineHandle | ExternalEngine


@dataclass(frozen=True, slots=True)
class EngineProcesses:
    """The engines that serve one model."""

    handles: Sequence[Handle] = ()
    clients: Sequence[EngineClient] = ()
    """A client of each engine."""

    @property
    def addresses(self) -> list[Address]:
        """Returns the engines' addresses."""
        return [Address(client.url, client.api_key) for client in self.clients]


@dataclass(frozen=True, slots=True)
class Processes:
    """The running processes of a job."""

    trainer: TrainerRanks
    engines: EngineProcesses = EngineProcesses()
    """Engines of the policy."""
    named_engines: Mapping[str, EngineProcesses] = field(default_factory=dict)
    """By name of `[[engines]]`."""


@dataclass(frozen=True, slots=True)
class Models:
    """The files of every model of a job."""

    policy: ModelFiles
    teacher: ModelFiles | None = None
    """The teacher, where the trainer's ranks compute it; None otherwise."""
    named_engines: Mapping[str, ModelFiles | None] = field(default_factory=dict)
    """By name of `[[engines]]`; None where external engines have the files."""

    @property
    def of_trainer(self) -> list[Path]:
        """Returns the folders that the trainer's ranks read."""
        return [model.folder for model in (self.policy, self.teacher) if model is not None]


async def start_processes(
    spec: Spec, plan: Plan, models: Models, folder: RunFolder, cluster: Cluster, *, timed: Timed
) -> Processes:
    """Starts Ray, and the ranks and engines of the plan. Raises JobError with the first cause of a failure.

    `timed` awaits a phase and shows it by its name.
    """
    await timed("starting Ray" if cluster.is_local else "joining the cluster", cluster.start())
    processes = cluster.launch(trainer_requests(plan, cluster.placement, folder))
    groups = _engines(spec, plan, models, folder, cluster)
    loading_trainer, loading_engines = await in_background(_phases, spec)
    if not cluster.is_local:
        await _check_hosts(spec, processes, groups[None], [*models.of_trainer, folder.path])
    trainer = TrainerRanks(cluster, processes, spec, plan, folders=models.of_trainer, weights=folder.weights)
    handles = [handle for group in groups.values() for handle in group]
    if sleeps(spec) and processes and groups[None]:
        await timed(loading_trainer, trainer.start())
        await trainer.offload()  # an engine takes what memory it finds
        starts = [handle.start() for handle in handles]
        found = await timed(loading_engines, gather_or_first_cause(starts))
    else:
        starts = [handle.start() for handle in handles]
        serving = asyncio.create_task(timed(loading_engines, gather_or_first_cause(starts)))
        await gather_or_first_cause([asyncio.create_task(timed(loading_trainer, trainer.start())), serving])
        found = serving.result()
    clients = iter(found)
    engines = {name: EngineProcesses(group, [next(clients) for _ in group]) for name, group in groups.items()}
    return Processes(trainer, engines.pop(None), {name or "": one for name, one in engines.items()})


def _phases(spec: Spec) -> tuple[str, str]:
    """Names the phases that load the trainer and the engines; compiling operators adds a minute to them."""
    compiling = ", with operators to compile once for this CPU"
    on_cpu = not spec.cluster.gpus_per_node
    trainer = compiling if on_cpu and not is_built(TRAINER_OPERATORS) else ""
    native = on_cpu and spec.engine.type == "native"
    engines = compiling if native and not is_built(ENGINE_OPERATORS) else ""
    return f"loading the trainer{trainer}", f"loading the engines{engines}"


def _engines(
    spec: Spec, plan: Plan, models: Models, folder: RunFolder, cluster: Cluster
) -> dict[str | None, list[Handle]]:
    """Handles by name, None for the policy's; their processes begin to start."""
    groups: dict[str | None, list[Handle]] = {None: []}
    if spec.engine.type == "external":
        if plan.rollout:
            wanted = ExpectedModel("engine", models.policy.config(), plan.max_sample_tokens)
            groups[None] = _external(spec, "engine", spec.engine, wanted)
    else:
        requests = engine_requests(spec.engine, plan.engines, cluster.placement.engines, folder)
        what = policy_model_setup(spec, plan, models.policy)
        groups[None] += engine_handles(spec, what, plan.engines, cluster, cluster.launch(requests))
    for number, section in enumerate(spec.engines):
        model = models.named_engines[section.name]
        if section.type == "external":
            wanted = ExpectedModel(
                f"engines[{number}]", model.config() if model else None, section.max_length
            )
            groups[section.name] = _external(spec, section.name, section, wanted)
            continue
        assert model is not None, "a rule asks for the path"
        pairs = zip(plan.named_engines, cluster.placement.named_engines, strict=True)
        plans, slots = zip(*(pair for pair in pairs if pair[0].name == section.name), strict=True)
        processes = cluster.launch(engine_requests(section, plans, slots, folder))
        what = named_model_setup(section, model)
        groups[section.name] = list(engine_handles(spec, what, plans, cluster, processes))
    return groups


def _external(spec: Spec, name: str, section: EngineSpec, wanted: ExpectedModel) -> list[Handle]:
    seconds = (answer_timeout(spec), spec.fault_tolerance.engine_timeout, section.start_timeout)
    return [
        ExternalEngine(f"{name} {number}", url, section.api_key, wanted, seconds)
        for number, url in enumerate(section.urls)
    ]


async def _check_hosts(
    spec: Spec, trainers: Sequence[Process], engines: Sequence[Handle], paths: Sequence[Path]
) -> None:
    """On a cluster that we joined: every host sees the files, and engines share rank 0's memory."""
    handles = [engine for engine in engines if isinstance(engine, EngineHandle)]
    own = [process for engine in handles for process in engine.processes]
    processes = [*trainers, *own]
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
        apart = process in own and trainers and process.host != trainers[0].host
        if apart and shares_memory(spec):
            raise JobError(
                f"{process.name} was placed on {process.host} and trainer 0 on {trainers[0].host}; "
                "weights go through shared memory, so they must share a host: use cluster.nodes = 1, or with "
                'SGLang engine.weight_sync = "broadcast"'
            )
