"""Changes of a job's settings that save memory of its ranks, tried one after the other until the job fits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from rlrun.runner.planning.phases import job_memory
from rlrun.runner.planning.rank_memory import rank_memory
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.reading import conflicts
from rlrun.specs.rules.algorithm_rules import ALGORITHM_RULES
from rlrun.specs.rules.rollout_rules import ROLLOUT_RULES
from rlrun.specs.rules.shared_rules import RULES, ray_address
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import TrainerSpec

Settings = Mapping[str, object]
"""Keys of the spec with their values: `{"trainer.offload": "optimizer"}`."""


def saved(
    job: PlannedJob, limit: float, options: Sequence[Settings] | None = None, phase: str = "training"
) -> tuple[PlannedJob, Settings] | None:
    """Returns the job with the settings that let a phase fit into `limit` bytes of a device, and these
    settings; None if all of them are not enough.

    The settings are tried in the order of what they cost in time, and those that turn out not to be needed
    are taken back. `options`: the settings to try, if they are known (`allowed_settings`).
    """
    # such as engines, which nothing here changes
    others = phase_bytes(job, phase) - rank_memory(job).training.bytes if phase == "training" else 0

    def needed(settings: Settings) -> int:
        smaller = with_settings(job, settings)
        if phase == "training":  # a quarter of the time, and a sweep asks thousands of times
            return rank_memory(smaller).training.bytes + others
        return phase_bytes(smaller, phase)

    chosen: dict[str, object] = {}
    least = needed(chosen)
    for settings in allowed_settings(job) if options is None else options:
        if least <= limit:
            break
        if (size := needed(chosen | dict(settings))) < least:
            chosen |= settings
            least = size
    if least > limit:
        return None
    for key in list(chosen)[:-1]:
        fewer = {name: value for name, value in chosen.items() if name != key}
        if needed(fewer) <= limit:
            chosen = fewer
    return with_settings(job, chosen), chosen


def allowed_settings(job: PlannedJob) -> list[Settings]:
    """Returns the settings that may save memory and break no rule, the cheapest in time first."""
    return [
        settings
        for settings in _settings(job.spec.trainer, job)
        if is_allowed(with_settings(job, settings).spec, job)
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


def with_settings(job: PlannedJob, settings: Settings) -> PlannedJob:
    """Returns the job with other values of keys of the trainer."""
    trainer = job.spec.trainer
    for key, value in settings.items():
        _, *sections, name = key.split(".")
        if sections:
            inner = getattr(trainer, sections[0]).model_copy(update={name: value})
            trainer = trainer.model_copy(update={sections[0]: inner})
        else:
            trainer = trainer.model_copy(update={name: value})
    return replace(job, spec=job.spec.model_copy(update={"trainer": trainer}))


def phase_bytes(job: PlannedJob, name: str) -> int:
    """Returns the memory that a phase needs on the fullest device."""
    return max((phase.bytes for phase in job_memory(job).phases if phase.name == name), default=0)


def is_allowed(spec: Spec, job: PlannedJob) -> bool:
    """Returns whether a variant of the job's spec breaks no rule."""
    # A plan starts nothing, so several nodes need no cluster yet
    rules = [rule for rule in (*RULES, *ROLLOUT_RULES) if rule is not ray_address]
    findings = (finding for rule in rules for finding in rule(spec))
    algorithm_findings = (finding for rule in ALGORITHM_RULES for finding in rule(spec, job.needs))
    refused = conflicts(Job(spec, job.needs, job.model), ignored=False)
    return not any(True for _ in chain(findings, algorithm_findings, refused))
