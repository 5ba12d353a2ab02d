"""Algorithms that compare samples by their roles, in executions of several players."""

import json
from dataclasses import replace
from typing import Any

import numpy as np

from rlrun.plugins.registry import build
from rlrun.plugins.testing import sample
from rlrun.plugins.types import Group, Sample, Status


def played(*executions: dict[Any, float], game: Any = None, key: str = "player") -> Group:
    """Returns a group whose executions have a sample for each role, with its reward."""
    samples: list[Sample] = []
    for number, rewards in enumerate(executions):
        for place, (role, reward) in enumerate(rewards.items()):
            one = sample(reward=reward, length=2 + place, id=f"0-{number}.{place}")
            one.execution_id, one.info = f"0-{number}", {key: role}
            samples.append(one)
    prompt = samples[0].prompt
    prompt = replace(prompt, row=replace(prompt.row, metadata={} if game is None else {"source": game}))
    return Group(prompt, samples)


def firsts(arrays: list[Any]) -> list[float]:
    """Returns each sample's advantage, which is the same on all of its tokens."""
    assert all((array == array[0]).all() for array in arrays)
    return [float(array[0]) for array in arrays]


def test_a_role_is_compared_with_the_moving_average_of_its_own_rewards() -> None:
    """b = 0.5 b + 0.5 r, from 0, for each player; a game is compared with the average before it."""
    algorithm = build("algorithms", "rae", {"decay": 0.5})
    first = [played({0: 1.0, 1: -1.0}, {0: 1.0, 1: -1.0}), played({1: 2.0, 0: -2.0})]
    algorithm.observe(first)
    # player 0: b = 0, 0.5, 0.75; player 1: b = 0, -0.5, -0.75
    assert firsts(algorithm.advantages(first)) == [1.0, -1.0, 0.5, -0.5, 2.75, -2.75]
    assert firsts(algorithm.advantages(first)) == [1.0, -1.0, 0.5, -0.5, 2.75, -2.75], (
        "it may be called again"
    )
    second = [played({0: 1.0, 1: 0.0})]
    algorithm.observe(second)  # player 0: b = (0.75 - 2) / 2; player 1: b = (-0.75 + 2) / 2
    assert firsts(algorithm.advantages(second)) == [1.0 + 0.625, 0.0 - 0.625]


def test_games_have_baselines_of_their_own() -> None:
    algorithm = build("algorithms", "rae", {"decay": 0.5})
    groups = [played({0: 1.0}, game=0), played({0: 3.0}, game=1), played({0: 1.0}, game=0)]
    algorithm.observe(groups)
    assert firsts(algorithm.advantages(groups)) == [1.0, 3.0, 0.5]
    named = build("algorithms", "rae", {"decay": 0.5, "role_key": "side"})
    groups = [played({"a": 1.0, "b": 3.0}, key="side"), played({"a": 1.0}, key="side")]
    named.observe(groups)
    assert firsts(named.advantages(groups)) == [1.0, 3.0, 0.5]


def test_an_execution_moves_a_role_s_baseline_once() -> None:
    """By the last of its samples; failed ones are left out."""
    algorithm = build("algorithms", "rae", {"decay": 0.5})
    group = played({0: 1.0}, {0: 0.0}, {0: 5.0})
    group.samples[1].execution_id = "0-0"
    group.samples[2].status = Status.FAILED
    after = played({0: 1.0})
    algorithm.observe([group, after])
    assert firsts(algorithm.advantages([group, after])) == [1.0, 0.0, 0.0, 1.0]


def test_baselines_continue_bit_for_bit_from_a_saved_state() -> None:
    rng = np.random.default_rng(0)
    steps = [
        [
            played(*({0: float(rng.normal()), "x": float(rng.normal())} for _ in range(3)), game=k)
            for k in range(2)
        ]
        for _ in range(4)
    ]
    params = {"adaptive_entropy": {"target": 2.0}}
    whole = build("algorithms", "rae", params)
    for groups in steps:
        continued = build("algorithms", "rae", params)
        continued.restore(json.loads(json.dumps(dict(whole.state()))))
        whole.observe(groups)
        continued.observe(groups)
        expected = np.concatenate(whole.advantages(groups))
        np.testing.assert_array_equal(np.concatenate(continued.advantages(groups)), expected)
        assert dict(continued.state()) == dict(whole.state())
        assert continued.step_values() == whole.step_values()
        assert set(whole.step_values()) == {"entropy_coef", "role_baseline"}
