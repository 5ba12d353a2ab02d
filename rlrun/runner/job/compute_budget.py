"""A job's GPUs as its speeds are measured against: how many there are, and how much of them training uses."""

from collections.abc import Iterable
from dataclasses import dataclass

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.hardware import Device
from rlrun.runner.planning.model_size import active_parameters
from rlrun.runner.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class ComputeBudget:
    """Who has how many, and what a token costs.

    Example: `Gpus(trainer=8, engines=8, flops=989e12, parameters=7_600_000_000, attention=100_352)`
    """

    trainer: int
    engines: int
    """Of the policy's engines; those that take turns with the trainer count on both sides."""
    flops: float | None
    """Dense bfloat16 operations a second of one, by its maker; None: a GPU that is not known."""
    parameters: int
    """That a token is multiplied by."""
    attention: int
    """layers × heads × head_dim: what a token costs more for each token before it."""

    def training_flops(self, lengths: Iterable[int]) -> float:
        """Of forward and backward passes over sequences of these lengths, with causal attention; what is
        computed again (`activation_checkpointing`) is not counted twice.
        """
        return 6.0 * sum(length * (self.parameters + self.attention * length) for length in lengths)

    def utilisation(self, training_flops: float, seconds: float) -> float | None:
        """Model FLOPs utilisation (https://arxiv.org/abs/2204.02311): the share of what the trainer's GPUs
        could have done; None where that is not known.
        """
        return training_flops / (seconds * self.trainer * self.flops) if self.flops else None


def gpus_of_job(plan: Plan, model: Architecture, gpu: Device | None) -> ComputeBudget | None:
    """The GPUs of a plan, all like `gpu`; None for a job on CPUs."""
    if not any(rank.location.gpu is not None for rank in plan.ranks):
        return None
    return ComputeBudget(
        trainer=len(plan.ranks),
        engines=sum(len(engine.locations) for engine in plan.engines),
        flops=gpu.flops if gpu else None,
        parameters=active_parameters(model),
        attention=model.layers * model.heads * model.head_dim,
    )
