"""Counts what a job stores outside of its devices: in host memory and on disk."""

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.memory import critic_share, optimizer_bytes
from rlrun.runner.planning.model_size import parameter_count
from rlrun.runner.planning.rank_share import RankShare, policy_share
from rlrun.specs.sections.auxiliary_models import CriticSpec
from rlrun.specs.sections.trainer import ParallelSpec, TrainerSpec


def top_token_bytes(samples: int, response_tokens: int, compared: int) -> int:
    """Returns the size of what a teacher says of a step: ids and log-probs of `compared` tokens, and the
    log-prob of all others, for each response token. The driver holds it from the teacher's pass to the
    update.
    """
    return samples * response_tokens * (4 * compared + 4 * (compared + 1)) if compared else 0


def offloaded_bytes(model: Architecture, trainer: TrainerSpec) -> int:
    """Returns the host memory per rank for the policy's training state that `trainer.offload` moves there."""
    share = policy_share(model, trainer)
    state = optimizer_bytes(share, trainer)
    masters = share.parameters * 4 + share.trained * 4
    return {"none": 0, "optimizer": state, "all": masters + state}[trainer.offload]


def checkpoint_copy_bytes(
    model: Architecture, trainer: TrainerSpec, critic: CriticSpec | None, *, optimizer: bool
) -> int:
    """Returns the size of a rank's copy for a checkpoint: its float32 parameters (of adapters, if there are
    any) and, with `checkpoint.optimizer`, optimizer state."""
    share = policy_share(model, trainer)
    size = _saved(share, trainer) * 4 + optimizer * optimizer_bytes(share, trainer)
    if critic is not None:
        critics_share = critic_share(model, trainer, critic)
        size += critics_share.parameters * 4 + optimizer * optimizer_bytes(critics_share, critic)
    return size


def checkpoint_bytes(
    model: Architecture, trainer: TrainerSpec, critic: CriticSpec | None, *, optimizer: bool
) -> int:
    """Returns the size of one checkpoint on disk: float32 parameters and, with `checkpoint.optimizer`,
    optimizer state of the policy, and of the critic.
    """
    alone = trainer.model_copy(update={"parallel": ParallelSpec()})
    whole_critic = None if critic is None else critic.model_copy(update={"parallel": None})
    return checkpoint_copy_bytes(model, alone, whole_critic, optimizer=optimizer)


def _saved(share: RankShare, trainer: TrainerSpec) -> int:
    """Returns the number of parameters that a checkpoint has: with adapters only theirs."""
    return share.trained if trainer.lora else share.parameters


def export_bytes(model: Architecture) -> int:
    """Returns the size of the final model as a Hugging Face folder."""
    return parameter_count(model) * {"float32": 4}.get(model.dtype, 2)
