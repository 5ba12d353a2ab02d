"""What a job keeps of its models apart from devices: in host memory, and on disk."""

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.memory import critic_share, optimizer_bytes
from rlrun.runner.planning.model_size import largest_share, parameter_count
from rlrun.specs.sections.companions import CriticSpec
from rlrun.specs.sections.trainer import ParallelSpec, TrainerSpec


def offloaded(model: Architecture, trainer: TrainerSpec) -> int:
    """Host memory of a rank for the policy's state that `trainer.offload` keeps there."""
    share = largest_share(model, trainer.parallel, trainer.freeze)
    state = optimizer_bytes(share, trainer)
    masters = share.parameters * 4 + share.trained * 4
    return {"none": 0, "optimizer": state, "all": masters + state}[trainer.offload]


def staged(model: Architecture, trainer: TrainerSpec, critic: CriticSpec | None) -> int:
    """What a rank copies of itself for a checkpoint: float32 parameters and optimizer state."""
    share = largest_share(model, trainer.parallel, trainer.freeze)
    size = share.parameters * 4 + optimizer_bytes(share, trainer)
    if critic is not None:
        own = critic_share(model, trainer, critic)
        size += own.parameters * 4 + optimizer_bytes(own, critic)
    return size


def checkpoint_bytes(model: Architecture, trainer: TrainerSpec) -> int:
    """One checkpoint on disk: float32 parameters and optimizer state of the whole model."""
    whole = largest_share(model, ParallelSpec(), trainer.freeze)
    return whole.parameters * 4 + optimizer_bytes(whole, trainer)


def export_bytes(model: Architecture) -> int:
    """The final model as a Hugging Face folder."""
    return parameter_count(model) * {"float32": 4}.get(model.dtype, 2)
