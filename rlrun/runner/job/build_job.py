"""From running parts to what works with them: the loop, or what generates alone."""

from functools import partial
from typing import Literal

from rlrun.models.transformers_models import read_model
from rlrun.plugins.registry import build
from rlrun.plugins.validation import needs_of
from rlrun.runner.batches.model_handle import ModelHandle, Pack
from rlrun.runner.batches.packing import Cost, plan_steps
from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.contracts.carriers import Role
from rlrun.runner.contracts.interfaces import FrozenModel, RolloutContext, WeightReceiver
from rlrun.runner.contracts.pending_requests import PendingRequests
from rlrun.runner.engines.pool.served_model import ServedModel
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.job.assembly import RunningJob
from rlrun.runner.job.batch_sources import demonstration_source, policy_source
from rlrun.runner.job.compute_budget import ComputeBudget, gpus_of_job
from rlrun.runner.job.device_sharing import DeviceSharing, SeparateDevices, SharedDevices
from rlrun.runner.job.job import BatchSource, Job, RolloutJob
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.planning.hardware import local_gpu
from rlrun.runner.planning.plan import Plan
from rlrun.runner.records.journal import Journal
from rlrun.runner.rollouts.asynchronous import AsynchronousSource, DrainBeforeUpdate
from rlrun.runner.rollouts.evaluation import Evaluator
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.lengths import longest_response
from rlrun.specs.derived.old_policy import old_log_probs_of
from rlrun.specs.derived.sampling_mask import records_mask
from rlrun.specs.sections.job import Spec


def make_job(
    spec: Spec,
    model: ModelFiles,
    parts: RunningJob,
    journal: Journal,
    checkpoints: Checkpoints,
    *,
    stop: StopRequest,
) -> Job:
    """The loop's view of the parts."""
    assert parts.trainer is not None, "a job that generates alone is made by make_rollout_job"
    policy = _policy(spec, parts)
    needs = needs_of(spec)
    source = _source(spec, parts, policy)
    engines: WeightReceiver | None = parts.pool
    if spec.rollout.weight_update == "between" and isinstance(source, AsynchronousSource):
        assert parts.pool is not None
        engines = DrainBeforeUpdate(parts.pool, source)
    return Job(
        steps=parts.steps,
        source=source,
        algorithm=build("algorithms", spec.algorithm.type, spec.algorithm.params),
        policy=_handle("policy", spec, parts, model),
        trainer=parts.trainer,
        journal=journal,
        checkpoints=checkpoints,
        engines=engines,
        evaluation=_evaluation(spec, parts, policy, journal),
        reference=_frozen("reference", spec, parts, model) if needs.reference else None,
        teacher=_frozen("teacher", spec, parts, model) if needs.teacher else None,
        critic=_handle("critic", spec, parts, model) if needs.critic else None,
        critic_only_steps=spec.critic.only_steps,
        reference_interval=spec.reference.update_interval,
        recompute_old=old_log_probs_of(spec, corrected=needs.trainer_log_probs) == "trainer",
        eval_before_training=spec.eval.before_training,
        eval_interval=spec.eval.interval,
        checkpoint_interval=spec.checkpoint.interval,
        peak_memory=parts.cluster.peak_memory,
        engine_counts=partial(_engine_counts, parts),
        gpus=_gpus(spec, parts.plan, model),
        compiles=spec.trainer.compile,
        stop=stop,
        devices=_device_sharing(spec, parts),
    )


def make_rollout_job(
    spec: Spec, parts: RunningJob, journal: Journal, checkpoints: Checkpoints, *, stop: StopRequest
) -> RolloutJob:
    """The view of the parts of a job that generates alone."""
    policy = _policy(spec, parts)
    return RolloutJob(
        steps=parts.steps,
        source=_source(spec, parts, policy),
        journal=journal,
        checkpoints=checkpoints,
        evaluation=_evaluation(spec, parts, policy, journal),
        eval_before_training=spec.eval.before_training,
        checkpoint_interval=spec.checkpoint.interval,
        stop=stop,
        engine_counts=partial(_engine_counts, parts),
    )


def _engine_counts(parts: RunningJob) -> dict[str, float]:
    """What all engines of the job did since the last call, where it is worth a metric."""
    pools = [*([] if parts.pool is None else [parts.pool]), *parts.others.values()]
    count = sum(pool.take_bad_answers() for pool in pools)
    return {"rollout/bad_answers": count} if count else {}


def _policy(spec: Spec, parts: RunningJob) -> RolloutContext | None:
    if parts.pool is None:
        return None
    inputs, pool = parts.inputs, parts.pool
    return RolloutContext(
        pool,
        inputs.tokenizer,
        parts.scorer,
        spec.seed,
        inputs.rollout,
        spec.deterministic,
        pending=PendingRequests(spec.engine.max_running * len(pool.slots)),
        record_mask=records_mask(spec, needs_of(spec)),
    )


def _evaluation(
    spec: Spec, parts: RunningJob, policy: RolloutContext | None, journal: Journal
) -> Evaluator | None:
    if policy is None or not parts.inputs.eval_sets:
        return None
    rollout, engine = spec.rollout, spec.engine
    in_a_step = rollout.batch_size * rollout.samples_per_prompt
    engines = len(parts.started.engines.clients) or 1
    room = rollout.max_concurrency or max(in_a_step, engine.max_running * engines)
    seconds = rollout.seconds_for(longest_response(spec))
    return Evaluator(parts.inputs.eval_sets, policy, seconds, room, show=journal.doing)


def _gpus(spec: Spec, plan: Plan, model: ModelFiles) -> ComputeBudget | None:
    if not spec.cluster.gpus_per_node:
        return None
    return gpus_of_job(plan, read_model(model.folder, spec.model.implementation), local_gpu())


def _device_sharing(spec: Spec, parts: RunningJob) -> DeviceSharing:
    if parts.pool is None or parts.trainer is None or not sleeps(spec):
        return SeparateDevices()
    return SharedDevices(parts.pool, parts.trainer)


def _frozen(
    role: Literal["reference", "teacher"], spec: Spec, parts: RunningJob, model: ModelFiles
) -> FrozenModel:
    """Returns the engines that serve the model, where its section names some, else the trainer's own."""
    section = spec.reference if role == "reference" else spec.teacher
    if section is not None and section.engine is not None:
        return ServedModel(parts.others[section.engine])
    return _handle(role, spec, parts, model)


def _handle(role: Role, spec: Spec, parts: RunningJob, model: ModelFiles) -> ModelHandle:
    """Returns the handle of a model on the trainer's ranks; the reference shares the policy's layout."""
    assert parts.trainer is not None
    match role:
        case "policy" | "reference":
            data_ranks = [rank.data_rank for rank in parts.plan.ranks]
            budget = parts.plan.micro_batch_tokens
        case "teacher":
            data_ranks = [rank.teacher_data_rank for rank in parts.plan.ranks]
            budget = spec.trainer.max_tokens_per_rank
        case "critic":
            data_ranks = [rank.critic_data_rank for rank in parts.plan.ranks]
            budget = spec.trainer.max_tokens_per_rank
    pack = _packer(spec, parts.plan, model, 1 + max(data_ranks), budget)
    return ModelHandle(parts.trainer, role, pack, data_ranks)


def _source(spec: Spec, parts: RunningJob, policy: RolloutContext | None) -> BatchSource:
    if parts.saved is not None:
        return parts.saved
    if policy is None:
        return demonstration_source(parts.inputs, parts.plan.batch.prompts)
    return policy_source(spec, policy, parts.inputs)


def _packer(spec: Spec, plan: Plan, model: ModelFiles, data_degree: int, budget: int) -> Pack:
    """Returns the packer of a layout with `data_degree` data ranks and a token budget per micro-batch."""
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
