"""Step 5: groups and their advantages become training sequences. Pure."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Prompt, Sample
from rlrun.runner.carriers import TrainSequence

Array = NDArray[np.float32]


def to_sequences(groups: Sequence[Group], advantages: Sequence[Array]) -> list[TrainSequence]:
    """One sequence for each sample with a response, in order; `advantages` is `[R]` for each sample."""
    samples = [(group.prompt, sample) for group in groups for sample in group.samples]
    return [
        _sequence(prompt, sample, values)
        for (prompt, sample), values in zip(samples, advantages, strict=True)
        if len(sample.tokens)
    ]


def with_old_log_probs(sequences: Sequence[TrainSequence], log_probs: Sequence[Array]) -> list[TrainSequence]:
    """The same sequences with the trainer's log-probs from before the first update."""
    return [replace(one, old_log_probs=values) for one, values in zip(sequences, log_probs, strict=True)]


def with_reference(sequences: Sequence[TrainSequence], log_probs: Sequence[Array]) -> list[TrainSequence]:
    """The same sequences with the reference policy's log-probs."""
    return [
        replace(one, reference_log_probs=values) for one, values in zip(sequences, log_probs, strict=True)
    ]


def _sequence(prompt: Prompt, sample: Sample, advantages: Array) -> TrainSequence:
    return TrainSequence(
        tokens=np.concatenate([prompt.tokens, sample.tokens]),
        prompt_length=len(prompt.tokens),
        loss_mask=sample.loss_mask,
        advantages=advantages,
        rollout_log_probs=sample.log_probs,
        execution=sample.execution_id or sample.id,
    )
