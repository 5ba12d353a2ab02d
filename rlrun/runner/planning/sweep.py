"""Sizes every layout of a job on the same GPUs, and sorts them by fit and speed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.fit import COMFORTABLE
from rlrun.runner.planning.plan import Plan, make_plan
from rlrun.runner.planning.rank_layout import divides_delta_heads
from rlrun.runner.planning.rank_share import balanced_layers
from rlrun.runner.planning.savings import (
    DEGREES,
    TRAINER_PHASES,
    Settings,
    allowed_settings,
    is_allowed,
    saved,
    server_degrees,
)
from rlrun.runner.planning.sizing import Sizing, size_job
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.derived.resolution import resolve
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import DEGREE_OF, ParallelSpec

_MODEL_PARALLEL = ("tensor", "pipeline", "context", "expert")
TRAINER_SHARES = (0.25, 0.5, 0.75)
"""The shares of the GPUs that the trainer gets in disaggregated layouts."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout, with the memory and time that it needs."""

    job: PlannedJob
    sizing: Sizing
    savings: Settings
    """The settings beside the layout with which its training fits."""

    @property
    def is_comfortable(self) -> bool:
        """Whether a tenth of the device's memory is left for what is not counted, but for generation."""
        limit = COMFORTABLE * self.job.device.memory
        return all(phase.bytes <= limit for phase in self.sizing.phases if phase.name in TRAINER_PHASES)

    @property
    def excess(self) -> float:
        """By how many times the fullest phase exceeds the device's memory; at most 1 if all phases fit."""
        return max(phase.bytes for phase in self.sizing.phases) / self.job.device.memory

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
        others = {
            key: value for key, value in self.savings.items() if not key.startswith("trainer.parallel.")
        }
        return {**layout, **engine, **others}


def sweep(job: PlannedJob) -> list[Candidate]:
    """Returns every layout that the spec and the model allow: first those that fit, then by time per step.

    A layout whose training does not fit comfortably gets the settings with which it does, if there are any.
    """
    options = allowed_settings(job)
    return sorted((_candidate(layout, options) for layout in _planned(job)), key=_sort_key)


def _candidate(job: PlannedJob, options: Sequence[Settings]) -> Candidate:
    candidate = Candidate(job, size_job(job, advise=False), {})
    limit = COMFORTABLE * job.device.memory
    if candidate.is_comfortable or (found := saved(job, limit, options)) is None:
        return candidate
    smaller, settings = found
    return Candidate(smaller, size_job(smaller, advise=False), settings)


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


def _sort_key(candidate: Candidate) -> tuple[bool, bool, int, int, float]:
    """Layouts that fit comfortably come first, and layouts that do not fit last.

    Treats times within 2 % of each other as equal; of those the layout with fewer degrees, and fewer keys
    that differ from their defaults, comes first.
    """
    seconds = candidate.sizing.estimate.step_seconds
    parallel = candidate.job.spec.trainer.parallel
    degrees = parallel.model_dump(include=set(_MODEL_PARALLEL)).values()
    kinds = sum(degree > 1 for degree in degrees) + (parallel.reshard_after_forward != "default")
    kinds += len(candidate.savings)
    return not candidate.fits, not candidate.is_comfortable, round(log(seconds) / 0.02), kinds, seconds


def candidate_specs(job: PlannedJob) -> Iterator[Spec]:
    """Yields specs that differ from the job's only in layout, placement and size of an engine."""
    spec, models = job.spec, [job.model, *([] if job.teacher is None else [job.teacher])]
    gpus = spec.cluster.gpus
    splits = [(gpus, "colocated")]
    if job.plan.engines:
        splits += [(int(gpus * share), "disaggregated") for share in TRAINER_SHARES if gpus * share >= 1]
    for ranks, placement in dict.fromkeys(splits):
        cluster = spec.cluster.model_copy(update={"placement": placement})
        engine_gpus = gpus if placement == "colocated" else gpus - ranks
        for tensor, parallel in product(server_degrees(job, engine_gpus), _meshes(ranks, spec, job.model)):
            engine = spec.engine.model_copy(update={"count": None, "tensor": tensor})
            trainer = spec.trainer.model_copy(update={"parallel": parallel})
            candidate = spec.model_copy(update={"trainer": trainer, "cluster": cluster, "engine": engine})
            if is_allowed(candidate, job.needs, job.model):
                yield resolve(candidate, job.needs, models).spec


def _meshes(ranks: int, spec: Spec, model: Architecture) -> Iterator[ParallelSpec]:
    """Yields layouts whose tensor and context groups stay within a node; FSDP takes the remaining factor.

    Settings of the spec that have an effect in a layout are kept.
    """
    degrees_in_node = [degree for degree in DEGREES if degree <= max(min(spec.cluster.gpus_of_nodes), 1)]
    for tensor in degrees_in_node:
        if model.heads % tensor or model.kv_heads % tensor:
            continue
        for pipeline in DEGREES:
            for context in degrees_in_node:
                fsdp, remainder = divmod(ranks, tensor * pipeline * context)
                if remainder or not fsdp or pipeline > model.layers:
                    continue
                if not divides_delta_heads(model, tensor, context):
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
