"""Changes of a job's settings that save memory of its ranks, tried one after the other until the job fits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.phases import job_memory
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.rank_memory import rank_memory
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.reading import conflicts
from rlrun.specs.derived.resolution import resolve
from rlrun.specs.derived.server_size import stages_of
from rlrun.specs.needs import Needs
from rlrun.specs.rules.algorithm_rules import ALGORITHM_RULES
from rlrun.specs.rules.rollout_rules import ROLLOUT_RULES
from rlrun.specs.rules.shared_rules import RULES, ray_address
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import Section
from rlrun.specs.sections.trainer import TrainerSpec

S = TypeVar("S", bound=Section)
DEGREES = (1, 2, 4, 8, 16)
"""The degrees of parallelism that are tried."""
TRAINER_PHASES = ("training", "weight update")
"""The phases whose memory is estimated; generation takes the share of a device that its server is given."""
POLICY_PHASES = (*TRAINER_PHASES, "generation")
"""The phases of the trainer and of the policy's engines; the others are those of `[[engines]]`."""
Settings = Mapping[str, object]
"""Keys of the spec with their values: `{"trainer.offload": "optimizer"}`."""


def saved(
    job: PlannedJob, limit: float, options: Sequence[Settings] | None = None
) -> tuple[PlannedJob, Settings] | None:
    """Returns the job with the settings that let training fit into `limit` bytes of a device, and these
    settings; None if all of them are not enough.

    `options`: the settings to try, if they are known (`allowed_settings`).
    """
    # such as engines, which no setting of the trainer changes
    others = phase_bytes(job, "training") - rank_memory(job).training.bytes
    if options is None:
        options = allowed_settings(job)
    # a quarter of the time of all phases, and a sweep asks thousands of times
    return _search(job, options, lambda smaller: rank_memory(smaller).training.bytes + others - limit)


def fitting(job: PlannedJob, share: float) -> tuple[PlannedJob, Settings] | None:
    """Returns the job with the settings that let every phase of its trainer and its policy's engines fit, and
    these settings; None if all of them are not enough.

    `share`: the part of a device's memory that training and a weight update may take.
    """
    options = [*_larger_servers(job), *allowed_settings(job)]
    return _search(job, options, lambda smaller: _missing(smaller, share))


def _search(
    job: PlannedJob, options: Sequence[Settings], missing: Callable[[PlannedJob], float]
) -> tuple[PlannedJob, Settings] | None:
    """Adds settings, in the order of what they cost in time, while they lower what is missing and something
    is; takes those back that turn out not to be needed. None if something is missing with all of them.
    """
    chosen: dict[str, object] = {}
    least = missing(job)
    for settings in options:
        if least <= 0:
            break
        more = chosen | dict(settings)
        if (left := missing(with_settings(job, more))) < least:
            chosen, least = more, left
    if least > 0:
        return None
    for key in list(chosen)[:-1]:
        fewer = {name: value for name, value in chosen.items() if name != key}
        if missing(with_settings(job, fewer)) <= 0:
            chosen = fewer
    return with_settings(job, chosen), chosen


def _missing(job: PlannedJob, share: float) -> float:
    """Returns by how many bytes the phases exceed their devices; a cache without room for a sample counts as
    the part of a device that it lacks of that room.
    """
    memory, device = job_memory(job), job.device.memory
    missing = 0.0
    for phase in memory.phases:
        if phase.name in POLICY_PHASES:
            missing += max(phase.bytes - device * (share if phase.name in TRAINER_PHASES else 1.0), 0.0)
    if memory.engine is not None and not memory.engine.concurrent:
        missing += device * (1 - memory.engine.cache_tokens / job.plan.max_sample_tokens)
    return missing


def allowed_settings(job: PlannedJob) -> list[Settings]:
    """Returns the settings that may save memory and break no rule, the cheapest in time first."""
    return [
        settings
        for settings in _settings(job.spec.trainer, job)
        if is_allowed(with_settings(job, settings).spec, job.needs, job.model)
    ]


def _settings(trainer: TrainerSpec, job: PlannedJob) -> Iterator[Settings]:
    if trainer.parallel.keeps_gathered and trainer.parallel.fsdp * trainer.parallel.context > 1:
        yield {"trainer.parallel.reshard_after_forward": "always"}
    if trainer.lora is not None and trainer.lora.base is None:
        yield {"trainer.lora.base": "nf4"}
    if trainer.activation_checkpointing == "none":
        yield {"trainer.activation_checkpointing": "full"}
    longest = job.plan.max_sample_tokens
    if trainer.micro_batch_size is None and trainer.max_tokens_per_rank > longest:
        yield {"trainer.max_tokens_per_rank": longest}
    if trainer.dtype == "float32" and job.on_gpu:
        yield {"trainer.dtype": "bfloat16"}
    if trainer.offload == "none" and job.on_gpu:
        yield {"trainer.offload": "optimizer"}
    if trainer.offload != "all" and job.on_gpu:
        yield {"trainer.offload": "all"}


def _larger_servers(job: PlannedJob) -> Iterator[Settings]:
    """Yields larger sizes of the policy's SGLang servers, the smallest first."""
    engine, gpus = job.spec.engine, sum(len(engine.locations) for engine in job.plan.engines)
    if engine.given("count") is None:
        yield from (
            {"engine.tensor": degree} for degree in server_degrees(job, gpus) if degree > engine.tensor
        )


def server_degrees(job: PlannedJob, gpus: int) -> list[int]:
    """Returns the tensor-parallel degrees of servers that can divide this many GPUs among themselves."""
    spec = job.spec
    if spec.engine.type != "sglang" or spec.engine.groups or not job.plan.engines:
        return [spec.engine.tensor]
    stages = stages_of(spec.engine)
    return [
        degree
        for degree in DEGREES
        if not gpus % (degree * stages)
        and not spec.cluster.gpus_per_node % degree
        and not job.model.heads % degree
    ] or [spec.engine.tensor]


def with_settings(job: PlannedJob, settings: Settings) -> PlannedJob:
    """Returns the job with other values of keys of the trainer and of `engine.tensor`."""
    spec = job.spec
    for key, value in settings.items():
        spec = _with_key(spec, key.split("."), value)
    if "engine.tensor" not in settings:
        return replace(job, spec=spec)
    models = [job.model, *([] if job.teacher is None else [job.teacher])]
    spec = resolve(spec, job.needs, models).spec
    return replace(job, spec=spec, plan=make_plan(spec))


def _with_key(section: S, key: Sequence[str], value: object) -> S:
    """Returns a copy of a section in which a key, or one of its tables, has another value."""
    name, *rest = key
    return section.model_copy(
        update={name: _with_key(getattr(section, name), rest, value) if rest else value}
    )


def phase_bytes(job: PlannedJob, name: str) -> int:
    """Returns the memory that a phase needs on the fullest device."""
    return max((phase.bytes for phase in job_memory(job).phases if phase.name == name), default=0)


def is_allowed(spec: Spec, needs: Needs, model: Architecture | None = None) -> bool:
    """Returns whether a variant of a spec breaks no rule. `model`: None if it is not known."""
    # A plan starts nothing, so several nodes need no cluster yet
    rules = [rule for rule in (*RULES, *ROLLOUT_RULES) if rule is not ray_address]
    findings = (finding for rule in rules for finding in rule(spec))
    algorithm_findings = (finding for rule in ALGORITHM_RULES for finding in rule(spec, needs))
    refused = conflicts(Job(spec, needs, model), ignored=False)
    return not any(True for _ in chain(findings, algorithm_findings, refused))
