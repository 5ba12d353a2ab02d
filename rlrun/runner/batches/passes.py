"""Stage 6 of a step: log-probs and values before any model is updated, then the advantages.

policy, reference, teacher: log-probs ┐
critic: values                        ┴─▶ samples ─▶ advantages, returns ─▶ sequences
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.protocols import Algorithm
from rlrun.plugins.row_checks import no_teacher, source_of
from rlrun.plugins.types import Group
from rlrun.runner.batches.model_handle import ModelHandle, PackedSteps
from rlrun.runner.batches.sequences import (
    samples_of,
    with_advantages,
    with_arrays,
    with_distilled,
    with_reference,
    with_values,
)
from rlrun.runner.contracts.algorithm_state import remembers
from rlrun.runner.contracts.carriers import Output, TrainSequence, TrainStep
from rlrun.runner.contracts.interfaces import FrozenModel
from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.contracts.teacher_reading import Reading

TeacherPrompts = Callable[[Sequence[Group], Sequence[TrainSequence]], list[TrainSequence]]
"""Returns the sequences as the teacher reads them, after prompts of its own, and sets `distilled` of the
samples."""


class TeacherTokens(Protocol):
    """The tokens of a teacher with a tokenizer of its own."""

    def __call__(self, groups: Sequence[Group], sequences: Sequence[TrainSequence]) -> list[Reading]:
        """Returns what the teacher reads of all samples, in order."""

    def outcomes(
        self, reading: Reading, ids: NDArray[np.int32], log_probs: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Returns the teacher's most probable tokens `[S, k]` and their log-probs `[S, k + 1]` as those of
        the policy: `[R, k]`, and `[R, k + 1]`.
        """


@dataclass(frozen=True, slots=True)
class Passes:
    """The forward passes over a step's sequences that the algorithm needs."""

    algorithm: Algorithm
    policy: ModelHandle
    reference: FrozenModel | None
    """None if the algorithm does not need it; the same holds for the teacher and the critic."""
    teacher: FrozenModel | None
    critic: ModelHandle | None
    source_teachers: Mapping[str, FrozenModel]
    """The teachers of single sources of the data; `teacher` is that of all other rows, and may be None where
    there are none."""
    teacher_prompts: TeacherPrompts | None
    """None: the teacher reads the policy's prompts."""
    recompute_old: bool
    """`old_log_probs = "trainer"`. It costs a pass only if a step takes several optimizer steps, or if
    advantages depend on these log-probs."""
    compare: Callable[[Sequence[TrainSequence], Sequence[NDArray[np.float32]]], None] | None = None
    """Compares the sequences with the policy's log-probs from before the first update, with `true_on_policy`.
    With one optimizer step the loss compares them, without a pass."""
    may_be_stale: bool = False
    """Samples may come from older weights than those that the step updates."""
    teacher_tokens: TeacherTokens | None = None
    """The teacher has a tokenizer of its own; None: it has the policy's."""
    trains_policy: bool = True
    """False in a step that trains the critic alone, which computes no loss of the policy."""

    async def run(
        self,
        clock: StepClock,
        groups: Sequence[Group],
        sequences: list[TrainSequence],
        packed: PackedSteps,
    ) -> list[TrainSequence]:
        """Returns the sequences, which `packed` contains too, with everything that their losses need.

        Only what the algorithm's needs name is computed.
        """
        needs = self.algorithm.needs
        if needs.old_log_probs or needs.policy_statistics or self.compare is not None:
            sequences = await self._old_log_probs(clock, groups, sequences, packed.policy)
        if needs.reference:
            assert self.reference is not None
            with clock.part("reference"):
                log_probs = await self.reference.log_probs(sequences, packed.policy)
            sequences = with_reference(sequences, groups, log_probs)
        if needs.teacher:
            sequences = await self._teachers(clock, groups, sequences)
        if needs.critic:
            assert self.critic is not None
            with clock.part("values"):
                values = await self.critic.values(sequences, packed.critic)
            sequences = with_values(sequences, groups, values)
        if (stateful := remembers(self.algorithm)) is not None:
            stateful.observe(groups)
        return with_advantages(sequences, groups, self.algorithm)

    async def _teachers(
        self, clock: StepClock, groups: Sequence[Group], sequences: list[TrainSequence]
    ) -> list[TrainSequence]:
        """Gives the teacher's log-probs to the samples. Returns the sequences, with the teacher's most
        probable tokens where the loss compares distributions.
        """
        if self.teacher_tokens is not None:
            return await self._other_tokens(clock, groups, sequences, self.teacher_tokens)
        read: Sequence[TrainSequence] = sequences
        with clock.part("teacher"):
            if self.teacher_prompts is not None:
                read = await asyncio.to_thread(self.teacher_prompts, groups, sequences)
                sequences = with_distilled(sequences, groups)
            names = self._asked
            outputs = await self._taught(names, groups, read)
            if len(names) > 1:
                ids, of_ids = outputs["top_ids"], outputs["top_log_probs"]
                sequences = with_arrays(sequences, teacher_top_ids=ids, teacher_top_log_probs=of_ids)
        for sample, own in zip(samples_of(groups), outputs["log_probs"], strict=True):
            sample.teacher_log_probs = own
        return sequences

    @property
    def _asked(self) -> list[Output]:
        """What a teacher says of the sequences."""
        has_divergence = self.algorithm.needs.divergence is not None
        return ["log_probs", "top_ids", "top_log_probs"] if has_divergence else ["log_probs"]

    async def _other_tokens(
        self,
        clock: StepClock,
        groups: Sequence[Group],
        sequences: list[TrainSequence],
        tokens: TeacherTokens,
    ) -> list[TrainSequence]:
        """As `_teachers`, of a teacher with a tokenizer of its own; marks where it can be compared."""
        assert self.teacher is not None, "the rules refuse teachers of single sources"
        names = self._asked
        with clock.part("teacher"):
            readings = await asyncio.to_thread(tokens, groups, sequences)
            outputs = await self.teacher.outputs(names, [reading.sequence for reading in readings])
        samples = samples_of(groups)
        for sample, reading, log_probs in zip(samples, readings, outputs["log_probs"], strict=True):
            own = sample.log_probs if sample.policy_log_probs is None else sample.policy_log_probs
            sample.teacher_log_probs = reading.sampled_log_probs(own, log_probs)
            sample.compared = reading.is_same_token if len(names) == 1 else reading.positions >= 0
        marks = [np.asarray(sample.compared, np.float32) for sample in samples]
        sequences = with_arrays(sequences, distilled=marks)
        if len(names) == 1:
            return sequences
        told = zip(readings, outputs["top_ids"], outputs["top_log_probs"], strict=True)
        pairs = [tokens.outcomes(reading, ids.astype(np.int32), of_ids) for reading, ids, of_ids in told]
        return [
            replace(sequence, teacher_top_ids=ids, teacher_top_log_probs=of_ids)
            for sequence, (ids, of_ids) in zip(sequences, pairs, strict=True)
        ]

    async def _taught(
        self, names: Sequence[Output], groups: Sequence[Group], sequences: Sequence[TrainSequence]
    ) -> dict[Output, list[NDArray[np.float32]]]:
        """Returns what the teacher of each sequence's row says of it, in the order of the sequences."""
        if not self.source_teachers:
            assert self.teacher is not None
            return await self.teacher.outputs(names, sequences)
        numbers: dict[str, list[int]] = {}
        for number, sample in enumerate(samples_of(groups)):
            source = source_of(sample.prompt.row)
            numbers.setdefault(source if source in self.source_teachers else "", []).append(number)

        async def ask(source: str) -> dict[Output, list[NDArray[np.float32]]]:
            teacher = self.source_teachers.get(source, self.teacher)
            if teacher is None:
                row = samples_of(groups)[numbers[source][0]].prompt.row
                raise ValueError(f"row {row.id}: {no_teacher(row, self.source_teachers)}")
            return await teacher.outputs(names, [sequences[number] for number in numbers[source]])

        answers = await asyncio.gather(*map(ask, numbers))
        result: dict[Output, list[NDArray[np.float32]]] = {name: [] for name in names}
        order = np.argsort([number for own in numbers.values() for number in own])
        for name, values in result.items():
            answered = [value for answer in answers for value in answer[name]]
            values += [answered[place] for place in order]
        return result

    async def _old_log_probs(
        self,
        clock: StepClock,
        groups: Sequence[Group],
        sequences: list[TrainSequence],
        steps: Sequence[TrainStep],
    ) -> list[TrainSequence]:
        """Returns the sequences with old log-probs.

        With one optimizer step the policy's own log-probs are the old ones, so no pass is spent on them
        unless advantages depend on them or on statistics of the policy, or the loss cannot compare all of
        them with those of engines. Advantages that need the current ones do not take those of the engines
        for stale samples. The samples get the statistics.
        """
        needs, several = self.algorithm.needs, len(steps) > 1
        statistics = needs.policy_statistics
        are_old = self.recompute_old and needs.old_log_probs
        is_compared_here = self.compare is not None and (several or not self.trains_policy)
        are_current = needs.current_log_probs and self.may_be_stale
        is_needed = are_old and (several or needs.policy_log_probs)
        log_probs = None
        if is_needed or are_current or statistics or is_compared_here:
            with clock.part("log_prob"):
                outputs = await self.policy.outputs(["log_probs", *statistics], sequences, steps)
            log_probs = outputs["log_probs"]
            for name in statistics:
                for sample, values in zip(samples_of(groups), outputs[name], strict=True):
                    setattr(sample, name, values)
        if self.compare is not None and log_probs is not None:
            self.compare(sequences, log_probs)
        # Statistics belong to these log-probs, also where the old ones are those of engines.
        before = log_probs if are_old or are_current or statistics else None
        if needs.old_log_probs and (needs.policy_log_probs or before is not None):
            for number, sample in enumerate(samples_of(groups)):
                sample.policy_log_probs = sample.log_probs if before is None else before[number]
        if not are_old:
            return sequences  # the old log-probs are those of the engines
        return with_arrays(sequences, old_log_probs=log_probs) if log_probs and several else sequences
