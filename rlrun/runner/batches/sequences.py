"""Steps 5 and 7: samples become training sequences, and get their advantages. Pure."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Prompt, Sample
from rlrun.runner.carriers import TrainSequence
from rlrun.runner.interfaces import Advantages

Array = NDArray[np.float32]


def to_sequences(groups: Sequence[Group]) -> list[TrainSequence]:
    """One sequence for each sample with a response, in order; advantages are still 0."""
    return [
        _sequence(sample.prompt, sample) for group in groups for sample in group.samples if len(sample.tokens)
    ]


def with_advantages(
    sequences: Sequence[TrainSequence], groups: Sequence[Group], algorithm: Advantages
) -> list[TrainSequence]:
    """`to_sequences(groups)` with the algorithm's advantages, and returns where it has a critic."""
    samples = [sample for group in groups for sample in group.samples]
    advantages = _of_responses(samples, algorithm.advantages(groups))
    trained = [replace(one, advantages=values) for one, values in zip(sequences, advantages, strict=True)]
    if not algorithm.needs.critic:
        return trained
    returns = _of_responses(samples, algorithm.returns(groups))
    return [replace(one, returns=values) for one, values in zip(trained, returns, strict=True)]


def with_old_log_probs(sequences: Sequence[TrainSequence], log_probs: Sequence[Array]) -> list[TrainSequence]:
    """The same sequences with the trainer's log-probs from before the first update."""
    return [replace(one, old_log_probs=values) for one, values in zip(sequences, log_probs, strict=True)]


def with_reference(sequences: Sequence[TrainSequence], log_probs: Sequence[Array]) -> list[TrainSequence]:
    """The same sequences with the reference policy's log-probs."""
    return [
        replace(one, reference_log_probs=values) for one, values in zip(sequences, log_probs, strict=True)
    ]


def with_values(sequences: Sequence[TrainSequence], values: Sequence[Array]) -> list[TrainSequence]:
    """The same sequences with the critic's values from before the update."""
    return [replace(one, values=found) for one, found in zip(sequences, values, strict=True)]


def note(groups: Sequence[Group], name: str, arrays: Sequence[Array] | None) -> None:
    """Put what a model said of each sequence on its sample, as attribute `name`, for the advantages.

    None: what the engine said when it made the sample. A sample without a response gets an empty array.
    """
    found = iter(arrays or [])
    for sample in (sample for group in groups for sample in group.samples):
        said = sample.log_probs if arrays is None or not len(sample.tokens) else next(found)
        setattr(sample, name, said)


def _of_responses(samples: Sequence[Sample], arrays: Sequence[Array]) -> list[Array]:
    return [array for sample, array in zip(samples, arrays, strict=True) if len(sample.tokens)]


def _sequence(prompt: Prompt, sample: Sample) -> TrainSequence:
    return TrainSequence(
        tokens=np.concatenate([prompt.tokens, sample.tokens]),
        prompt_length=len(prompt.tokens),
        loss_mask=sample.loss_mask,
        advantages=np.zeros(len(sample.tokens), dtype=np.float32),
        rollout_log_probs=sample.log_probs,
        execution=sample.execution_id or sample.id,
        experts=_experts(sample.experts, len(prompt.tokens) + len(sample.tokens)),
    )


def _experts(found: NDArray[np.int16] | None, tokens: int) -> NDArray[np.int16] | None:
    """Experts of all tokens: an engine does not run the last one that it makes."""
    if found is None:
        return None
    return np.pad(found, ((0, tokens - len(found)), (0, 0)), constant_values=-1)
