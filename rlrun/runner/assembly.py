"""From a spec to running parts: inputs, rewards, trainer ranks and engines, all started side by side."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from rlrun.plugins.registry import build
from rlrun.plugins.validation import needs_of
from rlrun.runner.background import in_background
from rlrun.runner.batches.packing import Cost, plan_steps
from rlrun.runner.batches.passes import Pack
from rlrun.runner.checkpoint import Checkpoints
from rlrun.runner.cluster.failures import ProcessFailure, gather_or_first_cause
from rlrun.runner.cluster.placement import place
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.start import Handle, Models, Started, start_processes
from rlrun.runner.cluster.start_engines import EngineHandle
from rlrun.runner.engines.frozen import ServedModel
from rlrun.runner.engines.pool import EnginePool
from rlrun.runner.engines.supervisor import Budget, Supervisor
from rlrun.runner.errors import JobError
from rlrun.runner.interfaces import Policy, UpdatedEngines
from rlrun.runner.loop import BatchSource, Job
from rlrun.runner.model_files import ModelFiles, fetch_files
from rlrun.runner.planning.plan import Plan, make_plan
from rlrun.runner.prompts.inputs import Inputs, read_inputs
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.rollouts.between import BetweenGenerations
from rlrun.runner.rollouts.evaluate import Evaluator
from rlrun.runner.rollouts.overlap import OverlappedSource
from rlrun.runner.rollouts.rollout_only import RolloutJob
from rlrun.runner.rollouts.saved_source import SavedSource
from rlrun.runner.rollouts.sources import demonstration_source, policy_source, saved_source
from rlrun.runner.scoring.scorer import Scorer
from rlrun.runner.trainer_group import TrainerGroup
from rlrun.runner.turns import Turns
from rlrun.specs.companions import ReferenceSpec, TeacherSpec
from rlrun.specs.job import Spec
from rlrun.specs.layout import sleeps


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that runs."""

    plan: Plan
    steps: int
    inputs: Inputs
    cluster: Cluster
    started: Started
    trainer: TrainerGroup | None
    """None where the job generates alone."""
    pool: EnginePool | None
    """The policy's engines."""
    others: Mapping[str, EnginePool]
    """By name of `[[engines]]`."""
    scorer: Scorer
    saved: SavedSource | None = None
    """Samples of another run to train on, instead of this one's own."""


async def start_parts(spec: Spec, model: ModelFiles, folder: RunFolder, stack: AsyncExitStack) -> Parts:
    """Start everything; `stack` ends it. JobError or ValueError with the first cause of what went wrong."""
    reading = asyncio.create_task(_read(spec, model))
    plan = make_plan(spec)
    if plan.steps is None:
        plan = make_plan(spec, rows=len((await reading).stream))
    assert plan.steps is not None
    steps, plan = spec.debug.step or plan.steps, part_of(plan, spec.debug.mode)
    saved = saved_source(spec, steps, model)
    scorer = Scorer(spec.rewards if saved is None else (), spec.scoring, folder.logs)
    stack.push_async_callback(scorer.close)
    cluster = Cluster(spec.cluster, place(plan))
    stack.push_async_callback(cluster.close)
    models = await in_background(_fetch_models, spec, model)
    starting = asyncio.create_task(start_processes(spec, plan, models, folder, cluster))
    scoring = asyncio.create_task(_start_scorer(scorer, starting if spec.engines else None))
    await gather_or_first_cause([starting, reading, scoring])
    stack.push_async_callback(reading.result().close)
    started = starting.result()
    mended = spec.fault_tolerance.engine_restarts > 0
    groups = {"": started.engines} | dict(started.others)
    pools = {
        name: EnginePool(group.clients, mended=mended) for name, group in groups.items() if group.clients
    }
    for pool in pools.values():
        stack.push_async_callback(pool.close)
    policy = pools.pop("", None)
    trainer = trainer_of(started, plan, policy) if plan.ranks else None
    return Parts(plan, steps, reading.result(), cluster, started, trainer, policy, pools, scorer, saved)


def _fetch_models(spec: Spec, policy: ModelFiles) -> Models:
    teacher = None
    if spec.teacher is not None and spec.teacher.path is not None:
        teacher = fetch_files("teacher.path", spec.teacher.path, spec.teacher.revision)
    others = {
        one.name: fetch_files(f"engines[{number}].path", one.path, one.revision) if one.path else None
        for number, one in enumerate(spec.engines)
    }
    for role, section in (("teacher", spec.teacher), ("reference", spec.reference)):
        if section is not None and section.engine is not None:
            _check_vocabulary(policy, role, others[section.engine])
    return Models(policy, teacher, others)


def _check_vocabulary(policy: ModelFiles, role: str, other: ModelFiles | None) -> None:
    """JobError where a teacher or reference has other tokens than the policy."""
    if other is None:
        return
    sizes = [one.config()["vocab_size"] for one in (other, policy)]
    if sizes[0] != sizes[1]:
        raise JobError(
            f"the {role} {other.folder} has {sizes[0]} tokens and the policy {sizes[1]}; they are compared "
            "token by token, so both must have the same tokenizer"
        )


async def _start_scorer(scorer: Scorer, starting: asyncio.Task[Started] | None) -> None:
    """At once, or when the engines that rewards may ask are up."""
    if starting is None:
        await scorer.start()
        return
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        others = starting.result().others
        await scorer.start({name: group.addresses for name, group in others.items()})


def part_of(plan: Plan, mode: Literal["rollout", "train"] | None) -> Plan:
    """What is started of a plan; everything sits where it would sit in the whole job."""
    if mode is None:
        return plan
    return replace(plan, ranks=()) if mode == "rollout" else replace(plan, engines=(), rollout=False)


def trainer_of(started: Started, plan: Plan, pool: EnginePool | None) -> TrainerGroup:
    """The trainer of the ranks that run now, which hands its weights to the engines."""
    trainer = TrainerGroup(
        started.trainer.processes,
        [rank.data_rank for rank in plan.ranks],
        teacher=[rank.teacher_data_rank for rank in plan.ranks],
        critic=[rank.critic_data_rank for rank in plan.ranks],
    )
    if pool is not None:
        pool.connect(trainer)
    return trainer


async def diagnose_engines(parts: Parts) -> ProcessFailure | None:
    """An engine that is gone or not well, if any."""
    return await parts.cluster.diagnose(
        [engine.process for engine in _every_engine(parts) if isinstance(engine, EngineHandle)]
    )


def _every_engine(parts: Parts) -> list[Handle]:
    groups = [parts.started.engines, *parts.started.others.values()]
    return [handle for group in groups for handle in group.handles]


async def watch_engines(spec: Spec, parts: Parts, say: Callable[[str], None]) -> None:
    """Return never; the failure of the first engine that is not well and cannot be started again."""
    engines = _every_engine(parts)
    if not engines:
        await asyncio.Event().wait()
    if not spec.fault_tolerance.engine_restarts:
        await gather_or_first_cause([engine.watch() for engine in engines])
    budget = Budget(spec.fault_tolerance.engine_restarts)
    pools = [(parts.pool, parts.started.engines.handles)] if parts.pool is not None else []
    pools += [(pool, parts.started.others[name].handles) for name, pool in parts.others.items()]
    await gather_or_first_cause([Supervisor(pool, handles, budget, say).run() for pool, handles in pools])


def make_job(spec: Spec, model: ModelFiles, parts: Parts, journal: Journal, checkpoints: Checkpoints) -> Job:
    """The loop's view of the parts."""
    assert parts.trainer is not None, "a job that generates alone is made by make_rollout_job"
    policy = _policy(spec, parts)
    needs = needs_of(spec)
    budget = spec.trainer.max_tokens_per_rank
    teachers = 1 + max(rank.teacher_data_rank for rank in parts.plan.ranks)
    critics = 1 + max(rank.critic_data_rank for rank in parts.plan.ranks)
    source = _source(spec, parts, policy)
    engines: UpdatedEngines | None = parts.pool
    if spec.rollout.weight_update == "between" and isinstance(source, OverlappedSource):
        assert parts.pool is not None
        engines = BetweenGenerations(parts.pool, source)
    return Job(
        steps=parts.steps,
        source=source,
        algorithm=build("algorithms", spec.algorithm.type, spec.algorithm.params),
        pack=_packer(
            spec, parts.plan, model, spec.trainer.parallel.data_degree, parts.plan.micro_batch_tokens
        ),
        trainer=parts.trainer,
        journal=journal,
        checkpoints=checkpoints,
        engines=engines,
        evaluation=_evaluation(spec, parts, policy),
        pack_teacher=_packer(spec, parts.plan, model, teachers, budget) if needs.teacher else None,
        teacher=_served(parts, spec.teacher),
        reference=_served(parts, spec.reference),
        pack_critic=_packer(spec, parts.plan, model, critics, budget) if needs.critic else None,
        critic_only_steps=spec.critic.only_steps,
        reference_interval=spec.reference.update_interval,
        recompute_old=spec.trainer.old_log_probs == "trainer",
        eval_before_training=spec.eval.before_training,
        eval_interval=spec.eval.interval,
        checkpoint_interval=spec.checkpoint.interval,
        peak_memory=parts.cluster.peak_memory,
        turns=_turns(spec, parts),
    )


def make_rollout_job(spec: Spec, parts: Parts, journal: Journal, checkpoints: Checkpoints) -> RolloutJob:
    """The view of the parts of a job that generates alone."""
    policy = _policy(spec, parts)
    return RolloutJob(
        parts.steps,
        _source(spec, parts, policy),
        journal,
        checkpoints,
        _evaluation(spec, parts, policy) if spec.eval.before_training else None,
        spec.checkpoint.interval,
    )


def _policy(spec: Spec, parts: Parts) -> Policy | None:
    if parts.pool is None:
        return None
    inputs = parts.inputs
    return Policy(parts.pool, inputs.tokenizer, parts.scorer, spec.seed, inputs.rollout, spec.deterministic)


def _evaluation(spec: Spec, parts: Parts, policy: Policy | None) -> Evaluator | None:
    if policy is None or not parts.inputs.eval_sets:
        return None
    return Evaluator(parts.inputs.eval_sets, policy, spec.rollout.request_timeout)


def _turns(spec: Spec, parts: Parts) -> Turns | None:
    if parts.pool is None or parts.trainer is None or not sleeps(spec):
        return None
    return Turns(parts.pool, parts.trainer)


def _served(parts: Parts, section: TeacherSpec | ReferenceSpec | None) -> ServedModel | None:
    """The model of a section that names engines."""
    if section is None or section.engine is None:
        return None
    return ServedModel(parts.others[section.engine])


def _source(spec: Spec, parts: Parts, policy: Policy | None) -> BatchSource:
    if parts.saved is not None:
        return parts.saved
    if policy is None:
        return demonstration_source(parts.inputs, parts.plan.batch.prompts)
    return policy_source(spec, policy, parts.inputs)


def _packer(spec: Spec, plan: Plan, model: ModelFiles, data_degree: int, budget: int) -> Pack:
    """For a layout of so many data ranks: the policy's, or that of a companion."""
    config = model.config()
    return partial(
        plan_steps,
        optimizer_steps=plan.batch.optimizer_steps,
        reduction=spec.trainer.reduction,
        max_tokens=budget,
        max_length=config["max_position_embeddings"],
        max_response_tokens=spec.rollout.max_response_tokens,
        data_degree=data_degree,
        cost=Cost.of_model(config),
        together=needs_of(spec).pairs,
        micro_batch_size=spec.trainer.micro_batch_size,
    )


async def _read(spec: Spec, model: ModelFiles) -> Inputs:
    needs = needs_of(spec)
    return await in_background(read_inputs, spec, model.folder, rollout=needs.rollout, pairs=needs.pairs)
