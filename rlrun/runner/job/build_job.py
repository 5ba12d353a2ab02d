"""Builds the `Job` of the loop, or the `RolloutJob` of a run that only generates, from a running job."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from rlrun.plugins.registry import build
from rlrun.plugins.types import Group
from rlrun.plugins.validation import needs_of
from rlrun.runner.batches.model_handle import ModelHandle, Pack
from rlrun.runner.batches.packing import Cost, plan_steps
from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.cluster.start import named_addresses
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.carriers import Role
from rlrun.runner.contracts.environment import Environment, name_of
from rlrun.runner.contracts.execution_limit import ExecutionLimit
from rlrun.runner.contracts.hooks import DRIVER, hooks_of
from rlrun.runner.contracts.interfaces import FrozenModel, RolloutContext, WeightReceiver
from rlrun.runner.contracts.named_engines import NamedEngines
from rlrun.runner.contracts.pending_requests import PendingRequests
from rlrun.runner.engines.pool.served_model import ServedModel
from rlrun.runner.host.memory import host_memory
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.job.assembly import RunningJob
from rlrun.runner.job.batch_sources import demonstration_source, policy_source
from rlrun.runner.job.debugging.step_profiles import StepProfiles
from rlrun.runner.job.device_sharing import DeviceSharing, SharedDevices
from rlrun.runner.job.job import BatchSource, Job, RolloutJob
from rlrun.runner.job.model_exports import ExportsByStep
from rlrun.runner.job.performance import ComputeBudget, gpus_of_job
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.job.sync_probe import SyncProbe
from rlrun.runner.planning.device_map import available_cores
from rlrun.runner.planning.hardware import local_gpu
from rlrun.runner.planning.plan import Plan
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.rollouts.asynchronous import AsynchronousSource, DrainBeforeUpdate
from rlrun.runner.rollouts.evaluation import Evaluator
from rlrun.specs.derived.agent_programs import program_limit
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.lengths import longest_response
from rlrun.specs.derived.old_policy import may_be_stale
from rlrun.specs.derived.policy_model import read_policy
from rlrun.specs.derived.served_adapters import (
    adapter_in_requests,
    has_one_teacher,
    shares_policy,
    teacher_in_policy_layout,
)
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.rollout import RolloutFunctionSpec


def make_job(
    spec: Spec,
    model: ModelFiles,
    running: RunningJob,
    journal: Journal,
    checkpoints: Checkpoints,
    *,
    stop: StopRequest,
    folder: RunFolder,
) -> Job:
    """Returns the job that the loop runs."""
    assert running.trainer is not None, "make_rollout_job is for runs that only generate"
    policy = _policy(spec, running)
    needs = needs_of(spec)
    source = _source(spec, running, policy)
    engines: WeightReceiver | None = running.pool
    if spec.rollout.weight_update == "between" and isinstance(source, AsynchronousSource):
        assert running.pool is not None
        engines = DrainBeforeUpdate(running.pool, source)
    return Job(
        steps=running.steps,
        source=source,
        algorithm=build("algorithms", spec.algorithm.type, spec.algorithm.params),
        policy=_handle("policy", spec, running, model),
        trainer=running.trainer,
        profiles=StepProfiles(spec.debug.profile.steps, folder.profile, running.trainer),
        journal=journal,
        checkpoints=checkpoints,
        engines=engines,
        evaluation=_evaluation(spec, running, policy, journal),
        reference=_frozen("reference", spec, running, model) if needs.reference else None,
        teacher=_frozen("teacher", spec, running, model) if needs.teacher and has_one_teacher(spec) else None,
        source_teachers=_source_teachers(spec, running, model) if needs.teacher else {},
        teacher_prompts=running.inputs.teacher_prompts if needs.teacher else None,
        teacher_tokens=running.inputs.teacher_tokens if needs.teacher else None,
        may_be_stale=may_be_stale(spec),
        averages_teacher=needs.teacher and spec.teacher is not None and spec.teacher.weights == "average",
        critic=_handle("critic", spec, running, model) if needs.critic else None,
        hooks=hooks_of(spec, DRIVER),
        make_patches=running.inputs.tokenizer.images.patches,
        critic_only_steps=spec.critic.only_steps,
        reference_interval=spec.reference.update_interval,
        recompute_old=spec.trainer.old_log_probs == "trainer",
        interpolate_old=spec.trainer.old_log_probs == "interpolated",
        eval_before_training=spec.eval.before_training,
        eval_interval=spec.eval.interval,
        weight_interval=spec.rollout.weight_update_interval,
        checkpoint_interval=spec.checkpoint.interval,
        best_metric=spec.checkpoint.keep_best,
        models=_exports(spec, running.trainer, folder),
        processes=running,
        gpus=_gpus(spec, running.plan, model),
        probe=_probe(spec, running, model),
        true_on_policy=spec.true_on_policy,
        compiles=spec.trainer.compile,
        stop=stop,
        devices=_device_sharing(spec, running),
    )


def _exports(spec: Spec, trainer: TrainerGroup, folder: RunFolder) -> ExportsByStep | None:
    interval = spec.checkpoint.export_interval
    return None if interval is None else ExportsByStep(trainer, folder, interval)


def make_rollout_job(
    spec: Spec, running: RunningJob, journal: Journal, checkpoints: Checkpoints, *, stop: StopRequest
) -> RolloutJob:
    """Returns the job of a run that only generates."""
    policy = _policy(spec, running)
    return RolloutJob(
        steps=running.steps,
        source=_source(spec, running, policy),
        journal=journal,
        checkpoints=checkpoints,
        evaluation=_evaluation(spec, running, policy, journal),
        eval_before_training=spec.eval.before_training,
        checkpoint_interval=spec.checkpoint.interval,
        stop=stop,
        processes=running,
    )


def make_evaluator(
    spec: Spec, running: RunningJob, journal: Journal, earlier: Mapping[str, Sequence[Group]]
) -> Evaluator:
    """Returns the evaluator of a run that only evaluates; `earlier` has what an earlier launch finished."""
    policy = _policy(spec, running)
    evaluator = _evaluation(spec, running, policy, journal, keep=journal.evaluated, earlier=earlier)
    assert evaluator is not None, "a run that only evaluates has engines and datasets"
    return evaluator


def _policy(spec: Spec, running: RunningJob) -> RolloutContext | None:
    if running.pool is None:
        return None
    pool = running.pool
    execution = _execution(spec, spec.rollout.function, spec.rollout.samples_per_prompt)
    pool.queue_counts.observe = execution["limit"].count_waiting
    return RolloutContext(
        pool,
        running.inputs.tokenizer,
        running.scorer,
        spec.seed,
        running.inputs.rollout,
        spec.deterministic,
        pending=PendingRequests(spec.engine.max_running * len(pool.generating)),
        needs=needs_of(spec),
        named_engines=NamedEngines(named_addresses(running.engines), one_at_a_time=spec.deterministic),
        **execution,
    )


def _execution(spec: Spec, function: RolloutFunctionSpec, samples: int) -> dict[str, Any]:
    """Returns how many executions of a rollout plugin run at once, and what counts how they end."""
    programs = program_limit(function, available_cores(), host_memory().total)
    return {
        "limit": ExecutionLimit(None if programs is None else programs.number),
        "environment": Environment(name_of(function), spec.fault_tolerance.execution_retries, samples),
    }


def _own_policy(
    spec: Spec, dataset: EvalDatasetSpec, running: RunningJob, policy: RolloutContext
) -> RolloutContext | None:
    """Returns the context of a dataset with rewards or a rollout plugin of its own; None without."""
    if dataset.rewards == spec.rewards and dataset.function == spec.rollout.function:
        return None
    own = replace(policy, grader=running.scorer.grader_of(dataset.rewards))
    if (rollout := running.inputs.eval_rollouts.get(dataset.name)) is None:
        return own
    return replace(own, rollout=rollout, **_execution(spec, dataset.function, dataset.samples_per_prompt))


def _evaluation(
    spec: Spec, running: RunningJob, policy: RolloutContext | None, journal: Journal, **kept: Any
) -> Evaluator | None:
    """Returns what evaluates the policy; None without datasets. `kept`: `keep` and `earlier` of Evaluator."""
    if policy is None or not running.inputs.eval_sets:
        return None
    rollout, engine = spec.rollout, spec.engine
    samples_per_step = rollout.batch_size * rollout.samples_per_prompt
    engines = 1 if running.pool is None else len(running.pool.generating)
    max_samples = rollout.max_concurrency or max(samples_per_step, engine.max_running * engines)
    seconds = rollout.seconds_for(longest_response(spec))
    sets = [
        replace(each, policy=_own_policy(spec, dataset, running, policy))
        for each, dataset in zip(running.inputs.eval_sets, spec.eval.datasets, strict=True)
    ]
    return Evaluator(sets, policy, seconds, max_samples, show=journal.doing, **kept)


def _gpus(spec: Spec, plan: Plan, model: ModelFiles) -> ComputeBudget | None:
    if not spec.cluster.gpus_per_node:
        return None
    architecture = read_policy(model.folder, spec, needs_of(spec))
    return gpus_of_job(plan, architecture, spec.trainer, local_gpu())


def _probe(spec: Spec, running: RunningJob, model: ModelFiles) -> SyncProbe | None:
    if spec.trainer.lora is None or running.pool is None:
        return None
    in_float32 = spec.trainer.dtype == spec.engine.dtype == "float32"
    return SyncProbe(
        _handle("policy", spec, running, model),
        running.pool.score_on_each,
        precision="float32" if in_float32 else "bfloat16",
        temperature=spec.rollout.temperature,
    )


def _device_sharing(spec: Spec, running: RunningJob) -> DeviceSharing:
    if running.pool is None or running.trainer is None or not sleeps(spec):
        return DeviceSharing()
    return SharedDevices(running.pool, running.trainer)


def _frozen(
    role: Literal["reference", "teacher"], spec: Spec, running: RunningJob, model: ModelFiles
) -> FrozenModel:
    """Returns the engines that serve the model, where its section names some, else the trainer's own."""
    section = spec.reference if role == "reference" else spec.teacher
    if section is not None and section.engine is not None:
        return _served(section.engine, spec, running, model)
    return _handle(role, spec, running, model)


def _source_teachers(spec: Spec, running: RunningJob, model: ModelFiles) -> dict[str, FrozenModel]:
    """Returns the teachers of single sources of the data, by the name of the source."""
    sources = {} if spec.teacher is None else spec.teacher.sources
    return {source: _served(name, spec, running, model) for source, name in sources.items()}


def _served(name: str, spec: Spec, running: RunningJob, model: ModelFiles) -> ServedModel:
    """Returns the model that a section of `[[engines]]` serves."""
    [section] = [each for each in spec.engines if each.name == name]
    pool = running.pool if shares_policy(section) else running.pools[name]
    if pool is None:
        raise ValueError(
            f'the policy\'s engines serve "{name}" of [[engines]], and debug.mode = "train" starts none: add '
            f'`path = "{spec.model.path}"` to its table'
        )
    return ServedModel(
        pool,
        adapter_in_requests(section),
        num_top=needs_of(spec).compared_tokens,
        vocabulary=model.config()["vocab_size"],
    )


def _handle(role: Role, spec: Spec, running: RunningJob, model: ModelFiles) -> ModelHandle:
    """Returns the handle of a model on the trainer's ranks; the reference shares the policy's layout, and so
    does a teacher that is an adapter of its model.
    """
    assert running.trainer is not None
    context = 1
    match role:
        case "teacher" if not teacher_in_policy_layout(spec):
            data_ranks = [rank.teacher_data_rank for rank in running.plan.ranks]
            budget = spec.trainer.max_tokens_per_rank
        case "policy" | "reference" | "teacher":
            data_ranks = [rank.data_rank for rank in running.plan.ranks]
            budget, context = running.plan.micro_batch_tokens, spec.trainer.parallel.context
        case "critic":
            data_ranks = [rank.critic_data_rank for rank in running.plan.ranks]
            budget = spec.trainer.max_tokens_per_rank
    optimizer_steps, degree = running.plan.batch.optimizer_steps, 1 + max(data_ranks)
    pack = _packer(spec, optimizer_steps, model, degree, budget)
    forward, tokens = None, spec.trainer.max_logprob_tokens_per_rank
    if tokens is not None:
        forward = _packer(spec, 1, model, degree, tokens * context)
    return ModelHandle(running.trainer, role, pack, data_ranks, forward)


def _source(spec: Spec, running: RunningJob, policy: RolloutContext | None) -> BatchSource:
    if running.saved is not None:
        return running.saved
    if policy is None:
        return demonstration_source(running.inputs, running.plan.batch.prompts)
    return policy_source(spec, policy, running.inputs)


def _packer(spec: Spec, optimizer_steps: int, model: ModelFiles, data_degree: int, budget: int) -> Pack:
    """Returns the packer of a layout with `data_degree` data ranks and a token budget per micro-batch."""
    config = model.config()
    return partial(
        plan_steps,
        optimizer_steps=optimizer_steps,
        reduction=spec.trainer.reduction,
        max_batch_tokens=budget,
        max_length=config["max_position_embeddings"],
        max_response_tokens=spec.rollout.max_response_tokens,
        data_degree=data_degree,
        cost=Cost.of_model(config),
        together=needs_of(spec).pairs,
        micro_batch_size=spec.trainer.micro_batch_size,
        share_prefixes=spec.trainer.share_prefixes,
    )
