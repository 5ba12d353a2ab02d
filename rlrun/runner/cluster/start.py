"""Starts a job's trainer ranks and engines. All processes are launched before rlrun waits for the first one.

Ray up ─▶ actors up (all at once) ─┬▶ ranks: import, meet at rank 0's address, load ─┬▶ all known by pid
                                   ├▶ engines: import, load, listen ────────────────┤
                                   └▶ external engines: answer which model they serve ┘
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.plugins.engines import Address
from rlrun.plugins.validation import needs_of
from rlrun.runner.cluster.engine_setups import named_model_setup, policy_model_setup
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.ray_process import Process, Request
from rlrun.runner.cluster.start_engines import EngineHandle, engine_requests, launch_engines
from rlrun.runner.cluster.start_trainer import TrainerRanks, trainer_requests
from rlrun.runner.contracts.carriers import Role
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.interfaces import Timed
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.external import ExpectedModel, ExternalEngine
from rlrun.runner.host.background import in_background
from rlrun.runner.host.cpp_build import OPERATORS, is_built
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.plan import Plan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.request_deadlines import answer_timeout
from rlrun.specs.derived.served_adapters import (
    adapter_in_requests,
    adapters_beside_policy,
    shares_policy,
)
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec

_BOOT_SECONDS = 120.0
"""Deadline for the first answer of a process that was just launched."""

Handle = EngineHandle | ExternalEngine
POLICY = ""
"""The name of the policy's engines beside those of `[[engines]]`."""


@dataclass(frozen=True, slots=True)
class EngineProcesses:
    """The engines that serve one model."""

    handles: Sequence[Handle] = ()
    """Empty for a section that is an adapter of the policy's model: the policy's engines serve it."""
    clients: Sequence[EngineClient | None] = ()
    """One client per engine, in the order of `handles`; None for elastic engines that have not joined."""
    adapter: str | None = None
    """The adapter that requests have to name; None if they name none."""

    @property
    def addresses(self) -> list[Address]:
        """Returns the engines' addresses. SGLang reads an adapter's name behind that of the model."""
        model = "default" if self.adapter is None else f"default:{self.adapter}"
        return [Address(client.url, client.api_key, model) for client in self.clients if client is not None]


def named_addresses(engines: Mapping[str, EngineProcesses]) -> dict[str, list[Address]]:
    """Returns the addresses of the engines of `[[engines]]`, which plugins may ask, by their names."""
    return {name: group.addresses for name, group in engines.items() if name != POLICY}


@dataclass(frozen=True, slots=True)
class Models:
    """The files of every model of a job."""

    policy: ModelFiles
    teacher: ModelFiles | None = None
    """The teacher's files if the trainer's ranks compute its log-probs; None otherwise."""
    reference: ModelFiles | None = None
    """The reference's files if it is another model than the policy; None otherwise."""
    critic: ModelFiles | None = None
    """The files that the critic starts from, if they are not the policy's; None otherwise."""
    named_engines: Mapping[str, ModelFiles | None] = field(default_factory=dict)
    """The files of each section of `[[engines]]`, by its name; None if only external engines have them."""

    @property
    def of_trainer(self) -> dict[Role, Path]:
        """Returns the folders that the trainer's ranks read, by the model."""
        models: dict[Role, ModelFiles | None] = {
            "policy": self.policy,
            "teacher": self.teacher,
            "reference": self.reference,
            "critic": self.critic,
        }
        return {role: model.folder for role, model in models.items() if model is not None}


async def start_processes(
    spec: Spec, plan: Plan, models: Models, folder: RunFolder, cluster: Cluster, *, timed: Timed
) -> tuple[TrainerRanks, dict[str, EngineProcesses]]:
    """Starts Ray and the plan's ranks and engines; returns them, the engines by the name of their section in
    `[[engines]]`, the policy's first as POLICY. Raises JobError with the first cause of a failure.

    `timed` awaits a phase and shows its name and duration.
    """
    ranks = trainer_requests(plan, cluster.placement, folder)
    first = [*ranks, *_policy_requests(spec, plan, folder, cluster)]
    await timed("starting Ray" if cluster.is_local else "joining the cluster", cluster.start(first))
    processes = await cluster.launch(ranks)
    groups = await _engines(spec, plan, models, folder, cluster)
    loading_trainer, loading_engines = await in_background(_phases, spec)
    if not cluster.is_local:
        await _check_hosts(
            processes, groups[POLICY], [*models.of_trainer.values(), folder.path, *_adapters(spec)]
        )
    trainer = TrainerRanks(cluster, processes, spec, plan, folders=models.of_trainer, weights=folder.weights)
    handles = [handle for group in groups.values() for handle in group]
    if sleeps(spec) and processes and groups[POLICY]:
        await timed(loading_trainer, trainer.start())
        await trainer.offload()  # engines size their cache by the memory that is free when they start
        starts = [_start(handle) for handle in handles]
        started = await timed(loading_engines, gather_or_first_cause(starts))
    else:
        starts = [_start(handle) for handle in handles]
        serving = asyncio.create_task(timed(loading_engines, gather_or_first_cause(starts)))
        await gather_or_first_cause([asyncio.create_task(timed(loading_trainer, trainer.start())), serving])
        started = serving.result()
    clients = iter(started)
    clients_of = {name: [next(clients) for _ in group] for name, group in groups.items()}
    policy = EngineProcesses(groups[POLICY], clients_of[POLICY])
    return trainer, {POLICY: policy, **_named(spec, groups, clients_of)}


async def _start(handle: Handle) -> EngineClient | None:
    """Starts an engine; returns None for an elastic one that the cluster has no room for."""
    if isinstance(handle, EngineHandle) and not handle.processes:
        return None
    return await handle.start()


def _adapters(spec: Spec) -> list[Path]:
    """Returns the folders of adapters that trainer ranks and the policy's engines read."""
    folders = [spec.model.adapter, spec.teacher.adapter if spec.teacher else None]
    return [
        Path(folder) for folder in (*folders, *adapters_beside_policy(spec).values()) if folder is not None
    ]


def _named(
    spec: Spec,
    groups: Mapping[str, Sequence[Handle]],
    clients: Mapping[str, Sequence[EngineClient | None]],
) -> dict[str, EngineProcesses]:
    """Returns the engines of each section of `[[engines]]`: the policy's for an adapter of its model."""
    return {
        section.name: EngineProcesses(
            groups.get(section.name, ()),
            clients[POLICY if shares_policy(section) else section.name],
            adapter_in_requests(section),
        )
        for section in spec.engines
    }


def _phases(spec: Spec) -> tuple[str, str]:
    """Returns the names of the phases that load the trainer and the engines.

    The names mention operators that have to be compiled first, because that takes about a minute.
    """
    compiling = " (compiling operators for this CPU, once)"
    on_cpu = not spec.cluster.gpus_per_node
    trainer = compiling if on_cpu and not is_built(OPERATORS) else ""
    engines = trainer if spec.engine.type == "native" else ""
    return f"loading the trainer{trainer}", f"loading the engines{engines}"


def _policy_requests(spec: Spec, plan: Plan, folder: RunFolder, cluster: Cluster) -> list[Request]:
    """Returns the processes to start for the policy's engines; none for engines that run elsewhere."""
    if spec.engine.type == "external":
        return []
    return engine_requests(spec.engine, plan.engines, cluster.placement.engines, folder)


async def _engines(
    spec: Spec, plan: Plan, models: Models, folder: RunFolder, cluster: Cluster
) -> dict[str, list[Handle]]:
    """Launches the engines' processes and returns the handles by section name, the policy's as POLICY."""
    groups: dict[str, list[Handle]] = {POLICY: []}
    if spec.engine.type == "external":
        if plan.rollout:
            expected = ExpectedModel("engine", models.policy.config(), plan.max_sample_tokens)
            groups[POLICY] = _external(spec, "engine", spec.engine, expected)
    else:
        setup = policy_model_setup(spec, plan, models.policy, folder.weights)
        slots = cluster.placement.engines
        groups[POLICY] += await launch_engines(spec, setup, plan.engines, slots, cluster, folder=folder)
    for number, section in enumerate(spec.engines):
        if shares_policy(section):
            continue
        model = models.named_engines[section.name]
        if section.type == "external":
            expected = ExpectedModel(
                f"engines[{number}]", model.config() if model else None, section.max_length
            )
            groups[section.name] = _external(spec, section.name, section, expected)
            continue
        assert model is not None, "validation requires the path of a model that rlrun serves"
        pairs = zip(plan.named_engines, cluster.placement.named_engines, strict=True)
        plans, slots = zip(*(pair for pair in pairs if pair[0].name == section.name), strict=True)
        setup = named_model_setup(section, model)
        groups[section.name] = [*await launch_engines(spec, setup, plans, slots, cluster, folder=folder)]
    return groups


def _external(spec: Spec, name: str, section: EngineSpec, expected: ExpectedModel) -> list[Handle]:
    seconds = (
        answer_timeout(spec, needs_of(spec)),
        spec.fault_tolerance.engine_timeout,
        section.start_timeout,
    )
    return [
        ExternalEngine(f"{name} {number}", url, section.api_key, expected, seconds)
        for number, url in enumerate(section.urls)
    ]


async def _check_hosts(trainers: Sequence[Process], engines: Sequence[Handle], paths: Sequence[Path]) -> None:
    """Raises JobError unless every host of a cluster that the job joined sees the job's files."""
    handles = [engine for engine in engines if isinstance(engine, EngineHandle)]
    processes = [*trainers, *(process for engine in handles for process in engine.processes)]
    names = [str(path) for path in paths]
    missing = await gather_or_first_cause(
        [process.call("missing", names, deadline=_BOOT_SECONDS) for process in processes]
    )
    for process, unseen in zip(processes, missing, strict=True):
        if unseen:
            raise JobError(
                f"{process.name} on {process.host} does not see {unseen[0]}; model.path, adapters and "
                "runs_dir must be on a file system that all nodes of the job share",
                code=Code.CLUSTER,
            )
