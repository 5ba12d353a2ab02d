"""A trajectory grows token by token, and is no sample where it has nothing of the policy's."""

import numpy as np
import pytest

from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.types import Status, TurnReward, VersionSpan


def made(*tokens: int, versions: tuple[VersionSpan, ...] | None = None, finish: str = "stop") -> Generation:
    spans = versions or (VersionSpan(0, 0, len(tokens)),)
    log_probs = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    return Generation(np.array(tokens, np.int32), log_probs, finish, spans if tokens else ())  # type: ignore[arg-type]


def begun() -> Trajectory:
    return Trajectory(np.array([1, 2], np.int32))


def test_tokens_given_before_the_first_answer_belong_to_the_prompt() -> None:
    one = begun()
    one.give([3])
    one.add(made(4))
    assert one.prompt.tolist() == [1, 2, 3]
    assert one.response()[0].tolist() == [4]


def test_tokens_given_after_the_last_answer_are_not_part_of_the_sample() -> None:
    one = begun()
    one.add(made(4, 5))
    one.give([6])
    one.give([7, 8])
    assert (one.sample_length(), len(one)) == (4, 7)
    assert one.tokens().tolist() == [1, 2, 4, 5, 6, 7, 8]
    one.add(made(finish="length"))
    assert one.response()[2].tolist() == [1, 1]
    assert (one.status, len(one.turns)) == (Status.TRUNCATED, 1)


def test_versions_cover_the_response_without_gaps() -> None:
    one = begun()
    one.add(made(4, 5, 6, versions=(VersionSpan(1, 0, 1), VersionSpan(2, 1, 3))))
    one.give([7])
    one.add(made(8, versions=(VersionSpan(2, 0, 1),)))
    one.add(made(9, versions=(VersionSpan(3, 0, 1),)))
    tokens, log_probs, mask, versions = one.response()
    assert tokens.tolist() == [4, 5, 6, 7, 8, 9]
    assert mask.tolist() == [1, 1, 1, 0, 1, 1]
    assert log_probs.tolist() == [-1, -2, -3, 0, -1, -1]
    assert versions == (VersionSpan(1, 0, 1), VersionSpan(2, 1, 5), VersionSpan(3, 5, 6))


def test_without_an_answer_the_response_is_empty() -> None:
    one = begun()
    one.add(made(finish="abort"))
    tokens, log_probs, mask, versions = one.response()
    assert len(tokens) == len(log_probs) == len(mask) == len(versions) == 0
    assert one.status is Status.ABORTED


def test_rewards_of_turns_fall_on_their_last_tokens() -> None:
    one = begun()
    assert one.rewarded_turns() == ()
    one.turn_rewards = []
    assert one.rewarded_turns() == ()
    one.add(made(4, 5))
    one.give([6])
    one.add(made(7))
    one.add(made(8))
    one.give([9])
    one.turn_rewards = np.array([0.5, 0.0, -1.0])
    assert one.rewarded_turns() == (TurnReward(2, 0.5), TurnReward(4, 0.0), TurnReward(5, -1.0))


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([1.0, 2.0], "2 turn_rewards for 1 turns of the policy"),
        ([float("nan")], r"turn_rewards are \[nan\]: a reward must be a finite number"),
        (["much"], "could not convert"),
    ],
)
def test_rewards_of_turns_that_are_none_are_refused(rewards: list[float], message: str) -> None:
    one = begun()
    one.add(made(4, 5))
    one.turn_rewards = rewards
    with pytest.raises(ValueError, match=message):
        one.rewarded_turns()


def test_given_tokens_with_weights_are_part_of_the_response_wherever_they_are() -> None:
    one = begun()
    one.give([3])
    one.give([4, 5], cross_entropy=[0.5, 0.0])
    one.add(made(6, 7, versions=(VersionSpan(3, 0, 2),)), weight=0.25, kl=[0.0, 2.0])
    one.give([8])
    one.give([9], cross_entropy=1.0)
    one.give([1])
    tokens, log_probs, mask, versions = one.response()
    assert one.prompt.tolist() == [1, 2, 3]
    assert tokens.tolist() == [4, 5, 6, 7, 8, 9]
    assert (log_probs.tolist(), mask.tolist()) == ([0, 0, -1, -2, 0, 0], [0, 0, 1, 1, 0, 0])
    assert versions == (VersionSpan(3, 0, 6),)
    assert one.cross_entropy().tolist() == [0.5, 0, 0, 0, 0, 1]
    assert one.policy_weights().tolist() == [1, 1, 0.25, 0.25, 1, 1]
    assert one.kl_weights().tolist() == [1, 1, 0, 2, 1, 1]
    assert one.rewarded_turns() == ()


def test_a_demonstration_is_a_response_without_an_answer() -> None:
    one = begun()
    one.give([4, 5], cross_entropy=1.0)
    tokens, log_probs, mask, versions = one.response()
    assert tokens.tolist() == [4, 5]
    assert not log_probs.any() and not mask.any() and versions == ()


def test_weights_of_an_answer_may_be_set_later() -> None:
    one = begun()
    one.give([3], cross_entropy=1.0)
    one.add(made(4, 5), weight=0.25)
    one.give([6])
    one.add(made(7, 8))
    one.weigh(0, kl=2.0)
    one.weigh(1, [0.0, 0.5])
    assert one.policy_weights().tolist() == [1, 1, 1, 1, 0, 0.5]
    assert one.kl_weights().tolist() == [1, 2, 2, 1, 1, 1]


def test_without_weights_there_are_no_arrays_of_them() -> None:
    one = begun()
    one.add(made(4), weight=1.0, kl=1.0)
    one.give([5], cross_entropy=0.0)
    one.add(made(6))
    assert one.cross_entropy() is None
    assert one.policy_weights() is None
    assert one.kl_weights() is None


@pytest.mark.parametrize("weight", [[1.0], float("nan"), -0.5, [0.5, float("inf")], "heavy", [[1.0, 2.0]]])
def test_weights_that_are_none_are_refused(weight: object) -> None:
    given, added = begun(), begun()
    given.give([4, 5], cross_entropy=weight)  # type: ignore[arg-type]
    added.add(made(4, 5), weight=weight)  # type: ignore[arg-type]
    for one in (given, added):
        with pytest.raises(ValueError):
            one.check()
