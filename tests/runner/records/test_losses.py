"""What lost executions may have done to the mean reward."""

import pytest

from rlrun.runner.records.losses import STEPS, find_losses

Numbers = dict[str, float]


def step(lost: float, low: float, high: float, **counts: int) -> Numbers:
    named = {f"rollout/failed/{name}": float(count) for name, count in counts.items()}
    return {"rollout/lost_frac": lost, "rollout/reward/min": low, "rollout/reward/max": high, **named}


@pytest.mark.parametrize(
    ("steps", "share", "bias"),
    [
        pytest.param([step(0.1, 0, 1, service=4)], 0.1, 0.1, id="rewards of 0 and 1"),
        pytest.param([step(0.1, -1, 3, service=4)], 0.1, 0.4, id="a wider range"),
        pytest.param(
            [step(0.2, 0, 0, error=8), step(0.0, 0, 1)], 0.1, 0.1, id="a range seen in another step"
        ),
        pytest.param([step(1.0, 0, 1)] + [step(0.5, 0, 1)] * STEPS, 0.5, 0.5, id="only the newest steps"),
        pytest.param([{"eval/held-out/reward": 1.0}, step(0.5, 0, 1)], 0.5, 0.5, id="an evaluation"),
        pytest.param([{"rollout/lost_frac": 1.0}], 1.0, 0.0, id="no reward was seen"),
    ],
)
def test_the_share_and_the_bound(steps: list[Numbers], share: float, bias: float) -> None:
    losses = find_losses(steps)
    assert losses is not None
    assert (losses.share, losses.bias) == (pytest.approx(share), pytest.approx(bias))


@pytest.mark.parametrize("steps", [[], [step(0.0, 0, 1)], [{"train/loss": 1.0}]])
def test_runs_without_losses(steps: list[Numbers]) -> None:
    assert find_losses(steps) is None


def test_the_bound_holds_for_any_rewards_of_the_lost() -> None:
    seen, range_ = [0.0, 1.0, 1.0, 0.5], (0.0, 1.0)
    for lost in ([0.0, 0.0], [1.0, 1.0]):
        losses = find_losses([step(len(lost) / (len(seen) + len(lost)), *range_)])
        assert losses is not None
        mean, whole = sum(seen) / len(seen), sum(seen + lost) / len(seen + lost)
        assert abs(mean - whole) <= losses.bias


def test_the_sentence_counts_types() -> None:
    late = {"rollout/dropped_samples/generation/timeout": 2.0}
    losses = find_losses([step(0.02, 0, 1, service=1, preempted=5) | late])
    assert losses is not None
    assert losses.sentence == (
        "2 % of the executions of the last steps have no reward (5 preempted, 2 late, 1 service); the mean "
        "reward is off by at most 0.02"
    )
