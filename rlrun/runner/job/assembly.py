"""Starts everything that a job needs, concurrently: inputs, rewards, trainer ranks and engines."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from rlrun.plugins.validation import needs_of
from rlrun.runner.cluster.placement import place
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.scratch import Scratch
from rlrun.runner.cluster.start import POLICY, EngineProcesses, Models, named_addresses, start_processes
from rlrun.runner.cluster.start_trainer import TrainerRanks
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.interfaces import Timed
from rlrun.runner.contracts.step_clock import GroupMoment, Span
from rlrun.runner.engines.pool.gateway import Gateway, make_gateway
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.host.background import in_background
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.job.batch_sources import saved_source
from rlrun.runner.job.inputs import Inputs, read_inputs
from rlrun.runner.job.job import ProcessRecords
from rlrun.runner.job.resume_checks import check_steps
from rlrun.runner.planning.plan import Plan, make_plan, plan_for_mode
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.rollouts.saved_source import SavedSource
from rlrun.runner.scoring.scorer import Scorer
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class RunningJob(ProcessRecords):
    """Everything of a job that has been started."""

    plan: Plan
    steps: int
    inputs: Inputs
    cluster: Cluster
    ranks: TrainerRanks
    """The processes of the trainer."""
    trainer: TrainerGroup | None
    """The ranks as one trainer; None in a run that only generates."""
    engines: Mapping[str, EngineProcesses]
    """The processes of the engines, by the name of their section in `[[engines]]`, and POLICY."""
    pools: Mapping[str, EnginePool]
    """The engines of each model as one, by the same names; not those that the policy's engines serve."""
    scorer: Scorer
    saved: SavedSource | None = None
    """Samples of another run to train on, with `debug.mode = "train"`."""
    gateway: Gateway | None = None
    """The router before the policy's engines; None if requests go to them directly."""

    @property
    def pool(self) -> EnginePool | None:
        """Returns the policy's engines; None without any."""
        return self.pools.get(POLICY)

    def peak_memory(self) -> Mapping[str, float]:
        """Returns bytes by role."""
        return self.cluster.peak_memory()

    def note(self) -> dict[str, Any]:
        """Returns what state.json says of the job's processes."""
        facts = self.cluster.note_processes()
        if (pool := self._elastic) is not None:
            facts["engines"] = [pool.engines_up, len(pool.slots)]
        return facts

    def take_counts(self) -> dict[str, float]:
        """Returns metrics that count engines, and what all engines of the job did since the last call."""
        count = sum(pool.take_bad_answers() for pool in self.pools.values())
        waiting = {} if self.pool is None else self.pool.queue_counts.take()
        engines = {} if self._elastic is None else {"rollout/engines": float(self._elastic.engines_up)}
        return waiting | engines | ({"rollout/bad_answers": count} if count else {})

    @property
    def _elastic(self) -> EnginePool | None:
        """The policy's engines if they are elastic."""
        return None if self.plan.min_engines is None else self.pool

    def take_spans(self) -> list[Span]:
        """Returns when the ranks, the engines and the rewards worked since the last call."""
        spans = [] if self.trainer is None else self.trainer.take_spans()
        for name, pool in self.pools.items():
            own = [span for slot in pool.slots for span in slot.busy.take()]
            spans += own if name == POLICY else [span._replace(lane=f"{name}: {span.lane}") for span in own]
        return [*spans, *self.scorer.busy.take()]

    def take_moments(self) -> list[GroupMoment]:
        """Returns when the policy's engines and the rewards ended their work for each group since the last
        call.
        """
        slots = [] if self.pool is None else self.pool.slots
        lanes = [*(slot.busy for slot in slots), self.scorer.busy]
        return [moment for lane in lanes for moment in lane.take_moments()]


async def start_job(
    spec: Spec,
    models: Models,
    folder: RunFolder,
    scratch: Scratch,
    stack: AsyncExitStack,
    *,
    timed: Timed,
) -> RunningJob:
    """Starts everything; closing `stack` ends it. Raises JobError or ValueError with the first cause.

    `timed` awaits a phase and shows it by its name.
    """
    reading = asyncio.create_task(timed("reading tokenizer and rows", _read(spec, models)))
    plan = make_plan(spec)
    if plan.steps is None:
        plan = make_plan(spec, rows=len((await reading).steps))
    assert plan.steps is not None
    check_steps(spec.debug.step or plan.steps, folder)  # epochs have so many steps as the rows give
    steps, plan = spec.debug.step or plan.steps, plan_for_mode(plan, spec.debug.mode)
    saved = saved_source(spec, steps, models.policy)
    cluster = Cluster(spec.cluster, place(plan), scratch, spec.fault_tolerance.node_timeout)
    stack.push_async_callback(cluster.close)
    retries = spec.fault_tolerance.execution_retries
    scorer = Scorer(
        spec.rewards if saved is None else (),
        spec.scoring,
        folder.logs,
        retries=retries,
        evaluated=[dataset.rewards for dataset in spec.eval.datasets] if saved is None else (),
    )
    stack.push_async_callback(scorer.close)  # before the cluster, which waits for all child processes
    processes = start_processes(spec, plan, models, folder, cluster, timed=timed)
    starting = asyncio.create_task(cluster.while_alive(processes))
    scorers = _start_scorer(scorer, starting if spec.engines else None)
    scoring = asyncio.create_task(timed("starting the rewards", scorers))
    await gather_or_first_cause([reading, starting, scoring])  # errors of files explain those of processes
    stack.push_async_callback(reading.result().close)
    ranks, engines = starting.result()
    gateway = make_gateway(spec, models.policy, folder)
    pools = _pools(spec, engines, gateway)
    for pool in pools.values():
        stack.push_async_callback(pool.close)
    policy = pools.get(POLICY)
    if gateway is not None and policy is not None:
        stack.push_async_callback(gateway.close)
        await gateway.start(policy.slots)
    trainer = TrainerGroup(ranks.processes) if plan.ranks else None
    return RunningJob(
        plan, steps, reading.result(), cluster, ranks, trainer, engines, pools, scorer, saved, gateway
    )


def _pools(
    spec: Spec, engines: Mapping[str, EngineProcesses], gateway: Gateway | None
) -> dict[str, EnginePool]:
    """Returns the pools by the names of the engines."""
    supervised = spec.fault_tolerance.engine_restarts > 0
    return {
        name: EnginePool(
            group.clients,
            supervised=supervised,
            send_sample=gateway.generate if gateway is not None and name == POLICY else None,
        )
        for name, group in engines.items()
        if group.handles
    }


async def _start_scorer(
    scorer: Scorer, starting: asyncio.Task[tuple[TrainerRanks, dict[str, EngineProcesses]]] | None
) -> None:
    """Starts the scorer; if rewards can call engines, waits until those have started."""
    if starting is None:
        await scorer.start()
        return
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        _, engines = starting.result()
        await scorer.start(named_addresses(engines))


async def _read(spec: Spec, models: Models) -> Inputs:
    model, teacher = models.policy, None if models.teacher is None else models.teacher.folder
    return await in_background(
        read_inputs, spec, model.folder, needs_of(spec), code=model.code, teacher=teacher
    )
