"""Whether a job fits its devices, what it writes to disk, how long it takes, before anything is started.

spec, plan, architecture, device -> Sizing: memory by phase, warnings, disk, estimate
"""

from dataclasses import dataclass

from rlrun.runner.planning.fit import misfits
from rlrun.runner.planning.memory import EngineMemory, Phase
from rlrun.runner.planning.phases import job_memory
from rlrun.runner.planning.rank_memory import reference_bytes, staged_bytes
from rlrun.runner.planning.step_time import Case, Estimate, estimate
from rlrun.runner.planning.storage import checkpoint_bytes, export_bytes, offloaded


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer."""

    phases: tuple[Phase, ...]
    """On the fullest device; on CPU, of all processes of the fullest node together."""
    engine: EngineMemory | None
    """None without rollouts."""
    reference: int
    """Bytes of host memory for the reference policy, of each rank."""
    offloaded: int
    """Bytes of host memory for the training state that `trainer.offload` keeps there, of each rank."""
    staged: int
    """Bytes of host memory for a checkpoint that is written while training goes on, of each rank."""
    disk: int
    """Bytes of all checkpoints that are kept at once, and of the exported model."""
    estimate: Estimate
    warnings: tuple[str, ...]


def size_job(case: Case) -> Sizing:
    """Size a job on devices like `case.device`; on CPU that is a whole host."""
    memory = job_memory(case)
    return Sizing(
        phases=memory.phases,
        engine=memory.engine,
        reference=reference_bytes(case),
        offloaded=offloaded(case.model, case.spec.trainer),
        staged=staged_bytes(case),
        disk=_disk(case),
        estimate=estimate(case, running_samples(case, memory.engine)),
        warnings=tuple(misfits(case, memory)),
    )


def running_samples(case: Case, engine: EngineMemory | None) -> int:
    """Samples of mean length that an engine decodes at a time."""
    if engine is None:
        return 0
    mean = max(case.load.prompt + case.load.response, 1)
    return max(1, min(case.spec.engine.max_running, int(engine.cache_tokens / mean)))


def _disk(case: Case) -> int:
    spec = case.spec
    kept = spec.checkpoint.keep if spec.checkpoint.interval else 1
    one_more = 1 if spec.checkpoint.interval else 0  # the oldest goes when a newer one is complete
    exported = export_bytes(case.model) if spec.checkpoint.export_hf else 0
    return (kept + one_more) * checkpoint_bytes(case.model, spec.trainer) + exported
