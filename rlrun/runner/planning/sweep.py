"""Sizes every layout of a job on the same GPUs, and sorts them by fit and speed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from math import log

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.plan import Plan, make_plan
from rlrun.runner.planning.rank_share import balanced_layers
from rlrun.runner.planning.sizing import Sizing, size_job
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.reading import conflicts
from rlrun.specs.derived.resolution import resolve
from rlrun.specs.derived.server_size import stages_of
from rlrun.specs.rules.algorithm_rules import ALGORITHM_RULES
from rlrun.specs.rules.rollout_rules import ROLLOUT_RULES
from rlrun.specs.rules.shared_rules import RULES, ray_address
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import DEGREE_OF, ParallelSpec

DEGREES = (1, 2, 4, 8, 16)
_MODEL_PARALLEL = ("tensor", "pipeline", "context", "expert")
TRAINER_SHARES = (0.25, 0.5, 0.75)
"""The shares of the GPUs that the trainer gets in disaggregated layouts."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout, with the memory and time that it needs."""

    job: PlannedJob
    sizing: Sizing

    @property
    def fits(self) -> bool:
        """Whether every phase fits a device's memory and the KV cache holds at least one sample."""
        engine = self.sizing.engine
        memory_suffices = all(phase.bytes <= self.job.device.memory for phase in self.sizing.phases)
        return memory_suffices and (engine is None or engine.concurrent > 0)

    @property
    def settings(self) -> dict[str, object]:
        """The keys of the spec that select this layout, with their values."""
        spec = self.job.spec
        parallel = spec.trainer.parallel
        keys = {name: value for name, value in parallel if value != ParallelSpec.model_fields[name].default}
        engine = {"engine.tensor": spec.engine.tensor} if spec.engine.type == "sglang" else {}
        layout = {"cluster.placement": spec.cluster.placement, "trainer.parallel": keys or {"fsdp": 1}}
        return {**layout, **engine}


def sweep(job: PlannedJob) -> list[Candidate]:
    """Returns every layout that the spec and the model allow: first those that fit, then by time per step."""
    return sorted((Candidate(job, size_job(job)) for job in _planned(job)), key=_sort_key)


def _planned(job: PlannedJob) -> Iterator[PlannedJob]:
    """Yields the job in each layout. Layouts that only differ in FSDP's policy share a plan: with thousands
    of ranks it takes longer than everything else.
    """
    plans: dict[object, Plan] = {}
    for spec in candidate_specs(job):
        sharded = spec.trainer.parallel.model_copy(update={"reshard_after_forward": "default"})
        key = sharded, spec.cluster.placement, spec.engine.tensor
        if key not in plans:
            plans = {key: make_plan(spec)}
        yield replace(job, spec=spec, plan=plans[key])


def _sort_key(candidate: Candidate) -> tuple[bool, int, int, float]:
    """Treats times within 2 % of each other as equal; of those the layout with fewer degrees, and fewer keys
    that differ from their defaults, comes first.
    """
    seconds = candidate.sizing.estimate.step_seconds
    parallel = candidate.job.spec.trainer.parallel
    degrees = parallel.model_dump(include=set(_MODEL_PARALLEL)).values()
    kinds = sum(degree > 1 for degree in degrees) + (parallel.reshard_after_forward != "default")
    return not candidate.fits, round(log(seconds) / 0.02), kinds, seconds


def candidate_specs(job: PlannedJob) -> Iterator[Spec]:
    """Yields specs that differ from the job's only in layout, placement and size of an engine."""
    spec, models = job.spec, [job.model, *([] if job.teacher is None else [job.teacher])]
    gpus = spec.cluster.nodes * spec.cluster.gpus_per_node
    splits = [(gpus, "colocated")]
    if job.plan.engines:
        splits += [(int(gpus * share), "disaggregated") for share in TRAINER_SHARES if gpus * share >= 1]
    for ranks, placement in dict.fromkeys(splits):
        cluster = spec.cluster.model_copy(update={"placement": placement})
        engine_gpus = gpus if placement == "colocated" else gpus - ranks
        for tensor, parallel in product(_server_sizes(engine_gpus, job), _meshes(ranks, spec, job.model)):
            engine = spec.engine.model_copy(update={"count": None, "tensor": tensor})
            trainer = spec.trainer.model_copy(update={"parallel": parallel})
            candidate = spec.model_copy(update={"trainer": trainer, "cluster": cluster, "engine": engine})
            if not _breaks_a_rule(candidate, job):
                yield resolve(candidate, job.needs, models).spec


def _server_sizes(gpus: int, job: PlannedJob) -> list[int]:
    """Returns the tensor-parallel degrees of servers that can divide this many GPUs among themselves."""
    spec = job.spec
    if spec.engine.type != "sglang" or not job.plan.engines:
        return [spec.engine.tensor]
    stages = stages_of(spec.engine)
    return [
        degree
        for degree in DEGREES
        if not gpus % (degree * stages)
        and not spec.cluster.gpus_per_node % degree
        and not job.model.heads % degree
    ] or [spec.engine.tensor]


def _meshes(ranks: int, spec: Spec, model: Architecture) -> Iterator[ParallelSpec]:
    """Yields layouts whose tensor and context groups stay within a node; FSDP takes the remaining factor.

    Settings of the spec that have an effect in a layout are kept.
    """
    degrees_in_node = [degree for degree in DEGREES if degree <= max(spec.cluster.gpus_per_node, 1)]
    for tensor in degrees_in_node:
        if model.heads % tensor or model.kv_heads % tensor:
            continue
        for pipeline in DEGREES:
            for context in degrees_in_node:
                fsdp, remainder = divmod(ranks, tensor * pipeline * context)
                if remainder or not fsdp or pipeline > model.layers:
                    continue
                for expert in _expert_degrees(fsdp * context * tensor, model):
                    sharded = ParallelSpec(
                        fsdp=fsdp, tensor=tensor, pipeline=pipeline, context=context, expert=expert
                    )
                    yield from _settings(sharded, spec.trainer.parallel, model)


def _settings(layout: ParallelSpec, given: ParallelSpec, model: Architecture) -> Iterator[ParallelSpec]:
    """Yields a layout, whose layers are divided by their work, with FSDP's default policy and with the other.

    Keys whose gain is not known (exchanges by other means) are only kept if the spec has them.
    """
    kept: dict[str, object] = {
        name: getattr(given, name)
        for name in given.model_fields_set & DEGREE_OF.keys()
        if getattr(layout, DEGREE_OF[name]) > 1
    }
    if layout.pipeline != given.pipeline or given.pipeline_layers is None:
        schedule = given.pipeline_schedule if layout.pipeline > 1 else "1F1B"
        kept["pipeline_layers"] = balanced_layers(model, layout.pipeline, schedule)
    if layout.fsdp * layout.context > 1:
        kept["symmetric_memory"] = given.symmetric_memory
    policies = ["default", "always" if layout.pipeline > 1 else "never"]
    if "reshard_after_forward" in given.model_fields_set or layout.world_size == 1:
        policies = [given.reshard_after_forward if layout.world_size > 1 else "default"]
    for policy in policies:
        yield layout.model_copy(update={**kept, "reshard_after_forward": policy})


def _expert_degrees(ranks: int, model: Architecture) -> list[int]:
    if model.experts is None:
        return [1]
    return [degree for degree in DEGREES if not ranks % degree and not model.experts.count % degree]


def _breaks_a_rule(spec: Spec, job: PlannedJob) -> bool:
    # A plan starts nothing, so several nodes need no cluster yet
    rules = [rule for rule in (*RULES, *ROLLOUT_RULES) if rule is not ray_address]
    findings = (finding for rule in rules for finding in rule(spec))
    algorithm_findings = (finding for rule in ALGORITHM_RULES for finding in rule(spec, job.needs))
    features = Job(spec, job.needs, job.model)
    refused = conflicts(features, ignored=False)
    return any(True for _ in chain(findings, algorithm_findings, refused))
