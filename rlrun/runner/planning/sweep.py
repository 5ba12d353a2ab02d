"""Other layouts of the same job on the same GPUs: which fit, and which would be fastest."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import log

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.sizing import Sizing, size_job
from rlrun.runner.planning.step_time import Case
from rlrun.specs.derived.server_size import stages_of
from rlrun.specs.rules.algorithm_rules import ALGORITHM_RULES
from rlrun.specs.rules.rollout_rules import ROLLOUT_RULES
from rlrun.specs.rules.shared_rules import RULES
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import ParallelSpec

DEGREES = (1, 2, 4, 8, 16)
_MODEL_PARALLEL = ("tensor", "pipeline", "context", "expert")
TRAINER_SHARES = (0.25, 0.5, 0.75)
"""Of the GPUs, where engines have their own."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout."""

    case: Case
    sizing: Sizing

    @property
    def fits(self) -> bool:
        """No phase needs more than a device has, and the cache holds a sample."""
        engine = self.sizing.engine
        within = all(phase.bytes <= self.case.device.memory for phase in self.sizing.phases)
        return within and (engine is None or engine.concurrent > 0)

    @property
    def settings(self) -> dict[str, object]:
        """What to set in the spec."""
        spec = self.case.spec
        parallel = spec.trainer.parallel
        names = ("fsdp", "tensor", "pipeline", "context", "expert")
        degrees = {name: getattr(parallel, name) for name in names if getattr(parallel, name) > 1}
        engine = {"engine.tensor": spec.engine.tensor} if spec.engine.type == "sglang" else {}
        layout = {"cluster.placement": spec.cluster.placement, "trainer.parallel": degrees or {"fsdp": 1}}
        return {**layout, **engine}


def sweep(case: Case) -> list[Candidate]:
    """Every layout that the spec's other settings and the model allow, those that fit first, then by time."""
    cases = (replace(case, spec=spec, plan=make_plan(spec)) for spec in layouts(case))
    found = [Candidate(each, size_job(each)) for each in cases]
    return sorted(found, key=_rank)


def _rank(candidate: Candidate) -> tuple[bool, int, int, float]:
    """Estimates within 2 % of each other count as the same: then the simpler layout comes first."""
    seconds = candidate.sizing.estimate.step_seconds
    degrees = candidate.case.spec.trainer.parallel.model_dump(include=set(_MODEL_PARALLEL)).values()
    return not candidate.fits, round(log(seconds) / 0.02), sum(degree > 1 for degree in degrees), seconds


def layouts(case: Case) -> Iterator[Spec]:
    """Specs that differ from the case's in layout, placement and the size of a server alone."""
    spec = case.spec
    gpus = spec.cluster.nodes * spec.cluster.gpus_per_node
    splits = [(gpus, "colocated")]
    if case.plan.engines:
        splits += [(int(gpus * share), "disaggregated") for share in TRAINER_SHARES if gpus * share >= 1]
    for ranks, placement in dict.fromkeys(splits):
        cluster = spec.cluster.model_copy(update={"placement": placement})
        rooms = gpus if placement == "colocated" else gpus - ranks
        for tensor, parallel in product(_server_sizes(rooms, case), _meshes(ranks, spec, case.model)):
            engine = spec.engine.model_copy(update={"count": None, "tensor": tensor})
            trainer = spec.trainer.model_copy(update={"parallel": parallel})
            changed = spec.model_copy(update={"trainer": trainer, "cluster": cluster, "engine": engine})
            if not _objections(changed, case):
                yield changed


def _server_sizes(gpus: int, case: Case) -> list[int]:
    """Degrees of tensor parallelism of the servers that share so many GPUs."""
    spec = case.spec
    if spec.engine.type != "sglang" or not case.plan.engines:
        return [spec.engine.tensor]
    stages = stages_of(spec.engine)
    return [
        degree
        for degree in DEGREES
        if not gpus % (degree * stages)
        and not spec.cluster.gpus_per_node % degree
        and not case.model.heads % degree
    ] or [spec.engine.tensor]


def _meshes(ranks: int, spec: Spec, model: Architecture) -> Iterator[ParallelSpec]:
    """Tensor parallelism inside a node; the ranks that are left over shard."""
    inside = [degree for degree in DEGREES if degree <= max(spec.cluster.gpus_per_node, 1)]
    for tensor in inside:
        if model.heads % tensor or model.kv_heads % tensor:
            continue
        for pipeline in DEGREES:
            for context in inside:
                fsdp, rest = divmod(ranks, tensor * pipeline * context)
                if rest or not fsdp or pipeline > model.layers:
                    continue
                for expert in _expert_degrees(fsdp * context * tensor, model):
                    yield ParallelSpec(
                        fsdp=fsdp, tensor=tensor, pipeline=pipeline, context=context, expert=expert
                    )


def _expert_degrees(ranks: int, model: Architecture) -> list[int]:
    if model.experts is None:
        return [1]
    return [degree for degree in DEGREES if not ranks % degree and not model.experts.count % degree]


def _objections(spec: Spec, case: Case) -> bool:
    """Whether a rule of the spec speaks against it."""
    own = (finding for rule in (*RULES, *ROLLOUT_RULES) for finding in rule(spec))
    others = (finding for rule in ALGORITHM_RULES for finding in rule(spec, case.needs))
    return any(True for _ in own) or any(True for _ in others)
