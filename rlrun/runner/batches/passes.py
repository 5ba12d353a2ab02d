"""Steps 6 and 7: what the models say of a step's samples before any of them is updated, and the advantages.

policy, reference, teacher: log-probs ┐
critic: values                        ┴─▶ samples ─▶ advantages, returns ─▶ sequences
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.batches.sequences import (
    note,
    note_values,
    with_advantages,
    with_old_log_probs,
    with_reference,
    with_values,
)
from rlrun.runner.contracts.carriers import TrainSequence, TrainStep
from rlrun.runner.contracts.interfaces import Advantages, FrozenModel, Trainer
from rlrun.runner.contracts.step_clock import StepClock

Pack = Callable[[Sequence[TrainSequence]], list[TrainStep]]


@dataclass(frozen=True, slots=True)
class Passes:
    """The models that may be asked, and how sequences are packed for each layout."""

    algorithm: Advantages
    trainer: Trainer
    recompute_old: bool
    """`old_log_probs = "trainer"`; costs a pass only where a step takes several optimizer steps, or where
    advantages depend on it."""
    pack_teacher: Pack | None = None
    pack_critic: Pack | None = None
    teacher: FrozenModel | None = None
    """Where it is not the trainer's ranks that hold it."""
    reference: FrozenModel | None = None
    """As for the teacher."""

    async def run(
        self,
        clock: StepClock,
        groups: Sequence[Group],
        sequences: list[TrainSequence],
        steps: Sequence[TrainStep],
    ) -> list[TrainSequence]:
        """The sequences with all that their losses take; nothing is computed that the algorithm's needs do
        not name.
        """
        needs = self.algorithm.needs
        if needs.old_log_probs:
            sequences = await self._policy(clock, groups, sequences, steps)
        if needs.reference:
            with clock.part("reference"):
                found = await self._reference_log_probs(sequences, steps)
            note(groups, "reference_log_probs", found)
            sequences = with_reference(sequences, found)
        if needs.teacher:
            with clock.part("teacher"):
                note(groups, "teacher_log_probs", await self._teacher_log_probs(sequences))
        if needs.critic:
            assert self.pack_critic is not None
            with clock.part("values"):
                batches = all_micro_batches(self.pack_critic(sequences))
                values = await self.trainer.values(sequences, batches)
            note_values(groups, values)
            sequences = with_values(sequences, values)
        return with_advantages(sequences, groups, self.algorithm)

    async def _reference_log_probs(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep]
    ) -> list[NDArray[np.float32]]:
        if self.reference is not None:
            return await self.reference.log_probs(sequences)
        return await self.trainer.log_probs(sequences, all_micro_batches(steps), reference=True)

    async def _teacher_log_probs(self, sequences: Sequence[TrainSequence]) -> list[NDArray[np.float32]]:
        if self.teacher is not None:
            return await self.teacher.log_probs(sequences)
        assert self.pack_teacher is not None
        return await self.trainer.teacher_log_probs(
            sequences, all_micro_batches(self.pack_teacher(sequences))
        )

    async def _policy(
        self,
        clock: StepClock,
        groups: Sequence[Group],
        sequences: list[TrainSequence],
        steps: Sequence[TrainStep],
    ) -> list[TrainSequence]:
        """Old log-probs. With one optimizer step the policy's own are the old ones, and no pass is spent on
        them unless advantages depend on them.
        """
        wanted, several = self.algorithm.needs.policy_log_probs, len(steps) > 1
        found = None
        if self.recompute_old and (several or wanted):
            with clock.part("log_prob"):
                found = await self.trainer.log_probs(sequences, all_micro_batches(steps))
        if wanted:
            note(groups, "policy_log_probs", found)
        return with_old_log_probs(sequences, found) if found and several else sequences
