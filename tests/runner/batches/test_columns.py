import numpy as np
import pytest

from rlrun.runner.batches.columns import from_columns, joined_log_probs, split_log_probs, to_columns
from rlrun.runner.carriers import TrainSequence


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
        experts=rng.integers(-1, 8, (prompt + response, 6)).astype(np.int16) if extra else None,
    )


FIELDS = (
    *("tokens", "loss_mask", "advantages", "rollout_log_probs"),
    *("old_log_probs", "reference_log_probs", "experts"),
)


@pytest.mark.parametrize("extra", [False, True])
def test_sequences_come_back_as_they_were(extra: bool) -> None:
    sequences = [sequence(1, 4, extra), sequence(3, 1, extra), sequence(2, 7, extra)]
    back = from_columns(to_columns(sequences, [0, 2]))
    assert list(back) == [0, 2]
    for index, one in back.items():
        assert one.prompt_length == sequences[index].prompt_length
        assert one.execution == sequences[index].execution
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(one, name), getattr(sequences[index], name))


def test_a_rank_without_sequences_gets_none() -> None:
    assert from_columns(to_columns([sequence(1, 1)], [])) == {}


def test_log_probs_for_some_only_are_our_mistake() -> None:
    with pytest.raises(AssertionError):
        to_columns([sequence(1, 1, True), sequence(1, 1, False)], [0, 1])


def test_log_probs_come_back_by_place() -> None:
    log_probs = {4: np.ones(3, np.float32), 0: np.zeros(2, np.float32)}
    back = split_log_probs(*joined_log_probs(log_probs))
    assert list(back) == [4, 0]
    assert [len(values) for values in back.values()] == [3, 2]
    assert split_log_probs(*joined_log_probs({})) == {}
