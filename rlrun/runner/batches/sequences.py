"""Steps 5 and 7: samples become training sequences, and get their advantages. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.images import PlacedImage
from rlrun.plugins.protocols import ActorCritic, Algorithm, TokenMarker
from rlrun.plugins.types import Group, Sample
from rlrun.runner.contracts.carriers import ImagePatches, TrainSequence
from rlrun.runner.contracts.placeholders import image_starts

Array = NDArray[np.float32]


def images_of(groups: Sequence[Group]) -> list[PlacedImage]:
    """Returns the images of all samples, in order; those that samples share several times."""
    return [image for sample in samples_of(groups) for image in (*sample.prompt.images, *sample.images)]


def samples_of(groups: Sequence[Group]) -> list[Sample]:
    """Returns the samples of all groups, in order."""
    return [sample for group in groups for sample in group.samples]


def to_sequences(
    groups: Sequence[Group], patches: Mapping[str, ImagePatches] = MappingProxyType({})
) -> list[TrainSequence]:
    """Returns one sequence per sample, in order; advantages are still 0. `patches`: of all images, by digest.

    A sample without a response trains nothing, but counts in the denominators of the loss.
    """
    samples = samples_of(groups)
    width = max((sample.experts.shape[1] for sample in samples if sample.experts is not None), default=0)
    sequences = [_with_images(_sequence(sample, width), sample, patches) for sample in samples]
    for name, default in WEIGHTS.items():
        if any(getattr(sample, name) is not None for sample in samples):
            sequences = with_arrays(
                sequences, **{name: [_array(sample, name, default) for sample in samples]}
            )
    return sequences


WEIGHTS = {"cross_entropy": 0.0, "kl_weights": 1.0}
"""Weights of tokens that the loss reads, and the weight of a token whose sample has none."""


def _array(sample: Sample, name: str, default: float) -> Array:
    array: Array | None = getattr(sample, name)
    return np.full(len(sample.tokens), default, np.float32) if array is None else array


def with_current_tokens(
    sequences: Sequence[TrainSequence], groups: Sequence[Group], version: int
) -> list[TrainSequence]:
    """Returns the sequences with marks on the tokens that weights `version` made."""
    return with_arrays(sequences, current=[_made_by(version, sample) for sample in samples_of(groups)])


def _made_by(version: int, sample: Sample) -> Array:
    current = np.zeros(len(sample.tokens), np.float32)
    for span in sample.versions:
        current[span.start : span.end] = span.version == version
    return current


def with_proximal_shares(
    sequences: Sequence[TrainSequence], groups: Sequence[Group], version: int
) -> list[TrainSequence]:
    """Returns the sequences with shares for interpolated old log-probs; the update makes `version` + 1."""
    return with_arrays(
        sequences, proximal_share=[_proximal_share(version, sample) for sample in samples_of(groups)]
    )


def _proximal_share(version: int, sample: Sample) -> Array:
    """Returns `[R]` (version before the update - version of the token) / (version after it - version of the
    token).
    """
    share = np.zeros(len(sample.tokens), np.float32)
    for span in sample.versions:
        age = max(version - span.version, 0)
        share[span.start : span.end] = age / (age + 1)
    return share


def with_reference(
    sequences: Sequence[TrainSequence], groups: Sequence[Group], log_probs: Sequence[Array]
) -> list[TrainSequence]:
    """Returns the sequences with the reference's log-probs, which the samples get too, for the advantages."""
    for sample, values in zip(samples_of(groups), log_probs, strict=True):
        sample.reference_log_probs = values
    return with_arrays(sequences, reference_log_probs=log_probs)


def with_distilled(sequences: Sequence[TrainSequence], groups: Sequence[Group]) -> list[TrainSequence]:
    """Returns the sequences with marks on the tokens of samples that are distilled."""
    marks = [np.full(len(sample.tokens), bool(sample.distilled), np.float32) for sample in samples_of(groups)]
    return with_arrays(sequences, distilled=marks)


def with_values(
    sequences: Sequence[TrainSequence], groups: Sequence[Group], values: Sequence[Array]
) -> list[TrainSequence]:
    """Returns the sequences with the critic's values `[R + 1]` from before the update, without the last one.

    The samples get all of them, for the advantages.
    """
    for sample, own in zip(samples_of(groups), values, strict=True):
        sample.values, sample.value_after = own[:-1], float(own[-1])
    return with_arrays(sequences, values=[own[:-1] for own in values])


def with_advantages(
    sequences: Sequence[TrainSequence], groups: Sequence[Group], algorithm: Algorithm
) -> list[TrainSequence]:
    """Returns the sequences with the algorithm's advantages, and with the returns and marks that it has.

    The samples get the advantages too: they are saved for people to read.
    """
    advantages = weighted_advantages(groups, algorithm)
    for sample, values in zip(samples_of(groups), advantages, strict=True):
        sample.advantages = values
    arrays: dict[str, Sequence[Array]] = {"advantages": advantages}
    if algorithm.needs.critic:
        arrays["returns"] = cast("ActorCritic", algorithm).returns(groups)
    if algorithm.needs.marks:
        arrays["marks"] = cast("TokenMarker", algorithm).marks(groups, advantages)
    return with_arrays(sequences, **arrays)


def weighted_advantages(groups: Sequence[Group], algorithm: Algorithm) -> list[Array]:
    """Returns the algorithm's advantages, times the weights that the rollout gave the tokens.

    A policy loss is proportional to the advantage, so its token is weighted, and no denominator changes.
    """
    return [
        advantages if sample.policy_weights is None else advantages * sample.policy_weights
        for sample, advantages in zip(samples_of(groups), algorithm.advantages(groups), strict=True)
    ]


def with_arrays(sequences: Sequence[TrainSequence], **arrays: Sequence[Array]) -> list[TrainSequence]:
    """Returns the sequences with other arrays; each argument has the name of a field, and one array per
    sequence.
    """
    rows = zip(*arrays.values(), strict=True)
    return [
        replace(sequence, **dict(zip(arrays, row, strict=True)))
        for sequence, row in zip(sequences, rows, strict=True)
    ]


def _sequence(sample: Sample, width: int) -> TrainSequence:
    prompt = sample.prompt.tokens
    return TrainSequence(
        tokens=np.concatenate([prompt, sample.tokens]),
        prompt_length=len(prompt),
        loss_mask=sample.loss_mask,
        advantages=np.zeros(len(sample.tokens), dtype=np.float32),
        rollout_log_probs=sample.log_probs,
        execution=sample.execution,
        experts=_experts(sample, width) if width else None,
        sampling_mask=sample.sampling_mask,
    )


def _with_images(
    sequence: TrainSequence, sample: Sample, patches: Mapping[str, ImagePatches]
) -> TrainSequence:
    images = (*sample.prompt.images, *sample.images)
    if not images:
        return sequence
    inserted = np.concatenate([np.ones(sequence.prompt_length, np.bool_), ~sample.made])
    return replace(
        sequence,
        images=tuple(patches[image.image.digest] for image in images),
        image_starts=image_starts(sequence.tokens, images, inserted),
    )


def _experts(sample: Sample, width: int) -> NDArray[np.int16]:
    """Returns the experts of all tokens, -1 for tokens that no engine ran, such as the last one."""
    experts = np.full((len(sample.prompt.tokens) + len(sample.tokens), width), -1, np.int16)
    if sample.experts is not None:
        experts[: len(sample.experts)] = sample.experts
    assert sample.experts is not None or not len(sample.tokens), "experts of some samples and not of others"
    return experts
