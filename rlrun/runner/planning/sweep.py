"""Sizes every layout of a job on the same GPUs, and sorts them by fit and speed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from math import log

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.sizing import Sizing, size_job
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.derived.server_size import stages_of
from rlrun.specs.rules.algorithm_rules import ALGORITHM_RULES
from rlrun.specs.rules.rollout_rules import ROLLOUT_RULES
from rlrun.specs.rules.shared_rules import RULES, ray_address
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import ParallelSpec

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
        names = ("fsdp", "tensor", "pipeline", "context", "expert")
        degrees = {name: getattr(parallel, name) for name in names if getattr(parallel, name) > 1}
        engine = {"engine.tensor": spec.engine.tensor} if spec.engine.type == "sglang" else {}
        layout = {"cluster.placement": spec.cluster.placement, "trainer.parallel": degrees or {"fsdp": 1}}
        return {**layout, **engine}


def sweep(job: PlannedJob) -> list[Candidate]:
    """Returns every layout that the spec and the model allow: first those that fit, then by time per step."""
    cases = (replace(job, spec=spec, plan=make_plan(spec)) for spec in candidate_specs(job))
    return sorted((Candidate(job, size_job(job)) for job in cases), key=_sort_key)


def _sort_key(candidate: Candidate) -> tuple[bool, int, int, float]:
    """Treats times within 2 % of each other as equal; of those the layout with fewer degrees comes first."""
    seconds = candidate.sizing.estimate.step_seconds
    degrees = candidate.job.spec.trainer.parallel.model_dump(include=set(_MODEL_PARALLEL)).values()
    return not candidate.fits, round(log(seconds) / 0.02), sum(degree > 1 for degree in degrees), seconds


def candidate_specs(job: PlannedJob) -> Iterator[Spec]:
    """Yields specs that differ from the job's only in layout, placement and size of an engine."""
    spec = job.spec
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
                yield candidate


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
    """Yields layouts whose tensor and context groups stay within a node; FSDP takes the remaining factor."""
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
                    yield ParallelSpec(
                        fsdp=fsdp, tensor=tensor, pipeline=pipeline, context=context, expert=expert
                    )


def _expert_degrees(ranks: int, model: Architecture) -> list[int]:
    if model.experts is None:
        return [1]
    return [degree for degree in DEGREES if not ranks % degree and not model.experts.count % degree]


def _breaks_a_rule(spec: Spec, job: PlannedJob) -> bool:
    # A plan starts nothing, so several nodes need no cluster yet
    rules = [rule for rule in (*RULES, *ROLLOUT_RULES) if rule is not ray_address]
    findings = (finding for rule in rules for finding in rule(spec))
    algorithm_findings = (finding for rule in ALGORITHM_RULES for finding in rule(spec, job.needs))
    return any(True for _ in chain(findings, algorithm_findings))
