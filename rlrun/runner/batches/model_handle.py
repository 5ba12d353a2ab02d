"""Handles of the models that the trainer's ranks hold: policy, reference, teacher and critic.

sequences ──▶ packed for the model's layout ──▶ every rank of the trainer ──▶ log-probs, values or metrics
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.contracts.carriers import MicroBatches, Output, Role, TrainSequence, TrainStep

Pack = Callable[[Sequence[TrainSequence]], list[TrainStep]]
"""Splits a step's sequences into optimizer steps and micro-batches."""


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """A step's sequences, packed once for every layout in which a model is trained."""

    policy: Sequence[TrainStep]
    """For the policy and the reference, which share a layout."""
    critic: Sequence[TrainStep] | None = None
    """None without a critic."""

    def with_values(self, values: Mapping[str, float]) -> "PackedSteps":
        """Returns the steps with the algorithm's numbers, for the policy's loss."""
        return replace(self, policy=[replace(step, values=values) for step in self.policy])


class RemoteModels(Protocol):
    """The ranks that hold the models (rlrun.runner.cluster.trainer_group.TrainerGroup).

    `data_ranks` is the part of the data that each rank sees in the model's layout.
    """

    async def compute(
        self,
        role: Role,
        outputs: Sequence[Output],
        sequences: Sequence[TrainSequence],
        micro_batches: MicroBatches,
        *,
        data_ranks: Sequence[int],
    ) -> dict[Output, list[NDArray[np.float32]]]:
        """Returns outputs of one model from a single pass, each with one array per sequence."""

    async def train(
        self,
        role: Role,
        sequences: Sequence[TrainSequence],
        steps: Sequence[TrainStep],
        *,
        data_ranks: Sequence[int],
    ) -> list[dict[str, float]]:
        """Takes optimizer steps with one model and returns the metrics of each."""


@dataclass(frozen=True, slots=True)
class ModelHandle:
    """One model on the trainer's ranks, with its layout and its packer.

    Every method packs the sequences for the model's layout, unless the caller passes `steps` that were packed
    by this handle.
    """

    ranks: RemoteModels
    role: Role
    pack: Pack
    data_ranks: Sequence[int]
    """The part of the data that each rank sees, by rank."""
    pack_forward: Pack | None = None
    """The packer of passes without gradients; None: they have the micro-batches of training."""

    async def log_probs(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep] | None = None
    ) -> list[NDArray[np.float32]]:
        """Returns `[R]` log-probs of each sequence's response under the model's current weights."""
        return (await self.outputs(["log_probs"], sequences, steps))["log_probs"]

    async def values(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep] | None = None
    ) -> list[NDArray[np.float32]]:
        """Returns `[R + 1]` values of each sequence: before each response token, and after the last."""
        return (await self.outputs(["values"], sequences, steps))["values"]

    async def outputs(
        self,
        names: Sequence[Output],
        sequences: Sequence[TrainSequence],
        steps: Sequence[TrainStep] | None = None,
    ) -> dict[Output, list[NDArray[np.float32]]]:
        """Returns several outputs from a single pass, each with `[R]` numbers of each sequence."""
        if self.pack_forward is not None:
            steps = self.pack_forward(sequences)
        micro_batches = all_micro_batches(self.pack(sequences) if steps is None else steps)
        return await self.ranks.compute(
            self.role, names, sequences, micro_batches, data_ranks=self.data_ranks
        )

    async def train(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep] | None = None
    ) -> list[dict[str, float]]:
        """Takes the optimizer steps and returns the metrics of each."""
        steps = self.pack(sequences) if steps is None else steps
        return await self.ranks.train(self.role, sequences, steps, data_ranks=self.data_ranks)
