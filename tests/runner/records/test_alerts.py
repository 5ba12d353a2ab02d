"""Signs that a run learns something else than it should."""

import re
from pathlib import Path

import pytest

from rlrun.runner.records.alerts import STEPS, WINDOW, AlertWatch, find_alerts, find_losses

PAGE = Path(__file__).parents[3] / "docs" / "alerts.md"
Numbers = dict[str, float]
ENTROPY = "train/entropy"
GAP = "train/train_rollout_logprob_abs_diff"
LENGTH, REWARD, SPREAD = "rollout/response_len/mean", "rollout/reward/mean", "rollout/reward/std"
DROPPED = "rollout/dropped/nonzero_std/all_equal"

LOST = "rollout/lost_frac"


def steps(first: Numbers, last: Numbers) -> list[Numbers]:
    return [{"perf/step_time": 1.0} | first] * WINDOW + [{"perf/step_time": 1.0} | last] * WINDOW


@pytest.mark.parametrize(
    ("first", "last", "names"),
    [
        pytest.param({ENTROPY: 1.0}, {ENTROPY: 0.09}, ["entropy_collapse"], id="entropy is gone"),
        pytest.param({ENTROPY: 1.0}, {ENTROPY: 0.2}, [], id="entropy fell"),
        pytest.param(
            {ENTROPY: 1.0, REWARD: 0.6, SPREAD: 0.43}, {ENTROPY: 0.01, REWARD: 0.96, SPREAD: 0.2}, [],
            id="entropy is gone, and the task is solved",
        ),
        pytest.param(
            {ENTROPY: 0.38, REWARD: 0.61, SPREAD: 0.43}, {ENTROPY: 0.024, REWARD: 0.94, SPREAD: 0.24}, [],
            id="the quickstart at step 20",
        ),
        pytest.param(
            {ENTROPY: 1.0, REWARD: 0.2, SPREAD: 0.4}, {ENTROPY: 0.01, REWARD: 0.5, SPREAD: 0.5},
            ["entropy_collapse"], id="entropy is gone, and half of the answers are wrong",
        ),
        pytest.param(
            {ENTROPY: 1.0, REWARD: 0.5, SPREAD: 0.5}, {ENTROPY: 0.01, REWARD: 0.1, SPREAD: 0.1},
            ["entropy_collapse", "reward_drop"], id="all answers are wrong",
        ),
        pytest.param({REWARD: 0.7, SPREAD: 0.4}, {REWARD: 0.6}, [], id="the reward fell a little"),
        pytest.param(
            {LENGTH: 100, REWARD: 0.5, SPREAD: 0.5}, {LENGTH: 160, REWARD: 0.52}, ["length_growth"],
            id="longer for nothing",
        ),
        pytest.param(
            {LENGTH: 100, REWARD: 0.5, SPREAD: 0.5}, {LENGTH: 160, REWARD: 0.6}, [], id="longer and better",
        ),
        pytest.param(
            {LENGTH: 100, REWARD: 0.5, SPREAD: 0.5}, {LENGTH: 130, REWARD: 0.5}, [], id="a little longer",
        ),
        pytest.param({"train/kl_loss": 0.0}, {"train/kl_loss": 0.6}, ["kl_growth"], id="left the reference"),
        pytest.param({}, {"train/approx_kl": 0.2}, ["kl_growth"], id="large updates"),
        pytest.param({}, {"train/kl_loss": 0.1, "train/approx_kl": 0.01}, [], id="ordinary KL"),
        pytest.param({GAP: 0.005}, {GAP: 0.02}, ["mismatch_growth"], id="engine and trainer drift apart"),
        pytest.param({GAP: 1e-6}, {GAP: 1e-4}, [], id="a gap too small to matter"),
        pytest.param({GAP: 0.02}, {GAP: 0.03}, [], id="a gap that bfloat16 has from the start"),
        pytest.param({}, {DROPPED: 24.0}, ["starvation"], id="three of four groups are dropped"),
        pytest.param({DROPPED: 99.0}, {DROPPED: 8.0}, [], id="half of the groups are dropped"),
        pytest.param({}, {LOST: 0.11}, ["lost_executions"], id="more than one in ten is lost"),
        pytest.param({LOST: 0.5}, {LOST: 0.1}, [], id="one in ten is lost"),
        pytest.param({GAP: 0.005}, {GAP: 0.02, DROPPED: 99.0}, ["mismatch_growth", "starvation"], id="two"),
    ],
)  # fmt: skip
def test_alerts(first: Numbers, last: Numbers, names: list[str]) -> None:
    assert [alert.name for alert in find_alerts(steps(first, last), 8)] == names


def test_too_few_steps_have_no_alerts() -> None:
    assert find_alerts(steps({}, {DROPPED: 24.0})[1:], 8) == []
    evaluation_only = [{"eval/sums/reward": 0.5}, *steps({}, {DROPPED: 24.0})[1:]]
    assert find_alerts(evaluation_only, 8) == []


def test_every_alert_has_a_paragraph() -> None:
    first = {"train/entropy": 1.0, LENGTH: 100, REWARD: 0.5, SPREAD: 0.2, GAP: 0.005}
    last = {
        "train/entropy": 0.0,
        LENGTH: 200,
        REWARD: 0.4,
        GAP: 1.0,
        "train/kl_loss": 9.0,
        DROPPED: 99.0,
        LOST: 0.2,
    }
    names = [alert.name for alert in find_alerts(steps(first, last), 8)]
    assert re.findall(r"^## (\w+)$", PAGE.read_text("utf-8"), re.M) == names


def test_an_alert_is_reported_once_until_it_ends() -> None:
    watch = AlertWatch()
    watch.begin(steps({}, {})[: 2 * WINDOW - 1], 8)
    starving, well = ({"perf/step_time": 1.0, DROPPED: float(count)} for count in (999, 0))
    new, metrics = watch.add(starving)
    assert [alert.name for alert in new] == ["starvation"]
    assert metrics == {"alerts/starvation": 1.0}
    assert watch.add(starving) == ([], {"alerts/starvation": 1.0})
    for _ in range(WINDOW - 1):
        watch.add(well)
    assert watch.add(well) == ([], {"alerts/starvation": 0.0})
    assert watch.add(well) == ([], {})


def test_a_resumed_run_knows_its_first_steps() -> None:
    watch = AlertWatch()
    watch.begin(steps({"train/entropy": 1.0}, {"train/entropy": 0.01}), 8)
    new, _ = watch.add({"perf/step_time": 1.0, "train/entropy": 0.01})
    assert [alert.line.split(":")[0] for alert in new] == ["alert entropy_collapse"]


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
