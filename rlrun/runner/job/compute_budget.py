"""The GPUs of a job, to compute speeds per GPU and the model FLOPs utilisation."""

from collections.abc import Iterable
from dataclasses import dataclass

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.hardware import Device
from rlrun.runner.planning.model_size import token_operations
from rlrun.runner.planning.plan import Plan
from rlrun.specs.sections.trainer import TrainerSpec


@dataclass(frozen=True, slots=True)
class ComputeBudget:
    """How many GPUs trainer and engines have, and how many operations a token costs.

    Example: `ComputeBudget(trainer=8, engines=8, flops=989e12, token_operations=45_600_000_000,
    attention=100_352)`
    """

    trainer: int
    engines: int
    """GPUs of the policy's engines. GPUs that engines share with the trainer count for both."""
    flops: float | None
    """Dense bfloat16 operations per second of one GPU, as its maker states; None for an unknown GPU."""
    token_operations: int
    """Operations of matrix products per token in a forward and backward pass: six for each parameter that a
    token is multiplied by, and four if it is frozen."""
    attention: int
    """layers × heads × head_dim: the additional cost of a token for each token before it."""

    def training_flops(self, lengths: Iterable[int]) -> float:
        """Returns the operations of forward and backward passes over sequences of these lengths, with causal
        attention. Recomputation (`activation_checkpointing`) is not counted.
        """
        return float(
            sum(length * (self.token_operations + 6 * self.attention * length) for length in lengths)
        )

    def utilisation(self, training_flops: float, seconds: float) -> float | None:
        """Returns the model FLOPs utilisation (https://arxiv.org/abs/2204.02311), the share of the operations
        that the trainer's GPUs could have done in this time; None for an unknown GPU.
        """
        return training_flops / (seconds * self.trainer * self.flops) if self.flops else None


def gpus_of_job(
    plan: Plan, model: Architecture, trainer: TrainerSpec, gpu: Device | None
) -> ComputeBudget | None:
    """Returns the budget of a plan whose GPUs are all like `gpu`; None for a job on CPUs."""
    if not any(rank.location.gpu is not None for rank in plan.ranks):
        return None
    return ComputeBudget(
        trainer=len(plan.ranks),
        engines=sum(len(engine.locations) for engine in plan.engines),
        flops=gpu.flops if gpu else None,
        token_operations=token_operations(model, trainer),
        attention=model.attention_layers * model.heads * model.head_dim,
    )
