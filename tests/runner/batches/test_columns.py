from dataclasses import fields, replace

import numpy as np
import pytest

from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.runner.batches.columns import from_columns, join_arrays, split_arrays, to_columns
from rlrun.runner.contracts.carriers import PER_TOKEN, TrainSequence


def sequence(prompt: int, response: int, extra: bool = False) -> TrainSequence:
    rng = np.random.default_rng(prompt * 100 + response)

    def floats() -> np.ndarray:
        return rng.normal(size=response).astype(np.float32)

    return TrainSequence(
        tokens=rng.integers(0, 9, prompt + response).astype(np.int32),
        prompt_length=prompt,
        loss_mask=floats(),
        advantages=floats(),
        rollout_log_probs=floats(),
        execution=f"{prompt}-{response}",
        old_log_probs=floats() if extra else None,
        reference_log_probs=floats() if extra else None,
        values=floats() if extra else None,
        returns=floats() if extra else None,
        marks=floats() if extra else None,
        distilled=floats() if extra else None,
        current=floats() if extra else None,
        cross_entropy=floats() if extra else None,
        kl_weights=floats() if extra else None,
        proximal_share=floats() if extra else None,
        teacher_top_ids=rng.integers(0, 9, (response, 2)).astype(np.int32) if extra else None,
        teacher_top_log_probs=rng.normal(size=(response, 3)).astype(np.float32) if extra else None,
        experts=rng.integers(-1, 8, (prompt + response, 6)).astype(np.int16) if extra else None,
        sampling_mask=mask(rng, response) if extra else None,
    )


def mask(rng: np.random.Generator, response: int) -> SamplingMask:
    lengths = rng.integers(0, 4, response).astype(np.int32)
    return SamplingMask(rng.integers(0, 9, lengths.sum()).astype(np.int32), lengths)


@pytest.mark.parametrize("extra", [False, True])
def test_sequences_come_back_as_they_were(extra: bool) -> None:
    sequences = [sequence(1, 4, extra), sequence(3, 1, extra), sequence(2, 7, extra)]
    back = from_columns(to_columns(sequences, [0, 2]))
    assert list(back) == [0, 2]
    for index, one in back.items():
        for field in fields(TrainSequence):
            ours, theirs = getattr(one, field.name), getattr(sequences[index], field.name)
            if isinstance(ours, SamplingMask):
                np.testing.assert_array_equal(ours.ids, theirs.ids)
                ours, theirs = ours.lengths, theirs.lengths
            np.testing.assert_array_equal(ours, theirs)


def test_every_array_with_an_entry_per_token_is_sent_as_one_column() -> None:
    arrays = {field.name for field in fields(TrainSequence) if "dtype" in str(field.type)}
    assert set(to_columns([sequence(1, 4, True)], [0]).arrays) == arrays == set(PER_TOKEN)


def test_a_sequence_without_a_mask_beside_one_with_a_mask_is_of_the_whole_vocabulary() -> None:
    masked = replace(
        sequence(1, 2), sampling_mask=SamplingMask(np.array([4], np.int32), np.array([0, 1], np.int32))
    )
    back = from_columns(to_columns([sequence(2, 0), masked, sequence(3, 3)], [2, 0, 1]))
    masks = {index: one.sampling_mask for index, one in back.items()}
    lengths = {index: mask.lengths.tolist() for index, mask in masks.items() if mask is not None}
    assert lengths == {2: [0, 0, 0], 0: [], 1: [0, 1]}


def test_a_rank_without_sequences_gets_none() -> None:
    columns = to_columns([sequence(1, 1)], [])
    assert from_columns(columns) == {}
    assert not columns.arrays


def test_log_probs_for_some_only_are_our_mistake() -> None:
    with pytest.raises(AssertionError):
        to_columns([sequence(1, 1, True), sequence(1, 1, False)], [0, 1])


def test_log_probs_come_back_by_place() -> None:
    said = {4: [0, 1, 2], 0: [-1, -2], 7: [1]}
    log_probs = {place: np.array(values, np.float32) for place, values in said.items()}
    back = split_arrays(*join_arrays(log_probs))
    assert {place: values.tolist() for place, values in back.items()} == said
    assert split_arrays(*join_arrays({})) == {}
