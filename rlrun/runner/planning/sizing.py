"""Estimates whether a job fits its devices, what it writes to disk and how long it takes.

    spec, plan, architecture, device -> Sizing: memory by phase, warnings, disk, time

Nothing is started.
"""

from dataclasses import dataclass

from rlrun.runner.planning.fit import fit_warnings
from rlrun.runner.planning.memory import EngineMemory, Phase
from rlrun.runner.planning.phases import job_memory
from rlrun.runner.planning.rank_memory import reference_bytes, staged_bytes
from rlrun.runner.planning.step_time import Case, Estimate, estimate
from rlrun.runner.planning.storage import checkpoint_bytes, export_bytes, offloaded_bytes


@dataclass(frozen=True, slots=True)
class Sizing:
    """The memory, disk space and time that a job needs."""

    phases: tuple[Phase, ...]
    """On the fullest device; on CPU, of all processes of the fullest node together."""
    engine: EngineMemory | None
    """None without rollouts."""
    reference: int
    """Bytes of host memory per rank for the reference policy."""
    offloaded: int
    """Bytes of host memory per rank for the training state that `trainer.offload` keeps there."""
    staged: int
    """Bytes of host memory per rank for a checkpoint that is written while training continues."""
    disk: int
    """Bytes of all checkpoints that are kept at once, and of the exported model."""
    estimate: Estimate
    warnings: tuple[str, ...]


def size_job(case: Case) -> Sizing:
    """Returns what a job needs on devices like `case.device`; on CPU a device is a whole host."""
    memory = job_memory(case)
    return Sizing(
        phases=memory.phases,
        engine=memory.engine,
        reference=reference_bytes(case),
        offloaded=offloaded_bytes(case.model, case.spec.trainer),
        staged=staged_bytes(case),
        disk=_disk_bytes(case),
        estimate=estimate(case, running_samples(case, memory.engine)),
        warnings=tuple(fit_warnings(case, memory)),
    )


def running_samples(case: Case, engine: EngineMemory | None) -> int:
    """Returns how many samples of mean length an engine decodes at a time."""
    if engine is None:
        return 0
    mean = max(case.load.prompt + case.load.response, 1)
    return max(1, min(case.spec.engine.max_running, int(engine.cache_tokens / mean)))


def _disk_bytes(case: Case) -> int:
    spec = case.spec
    kept = spec.checkpoint.keep if spec.checkpoint.interval else 1
    # the oldest checkpoint is removed only when a newer one is complete
    unfinished = 1 if spec.checkpoint.interval else 0
    exported = export_bytes(case.model) if spec.checkpoint.export_hf else 0
    return (kept + unfinished) * checkpoint_bytes(case.model, spec.trainer) + exported
