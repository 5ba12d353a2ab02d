"""Signs that a run learns something else than it should, as pure functions of its metrics (docs/alerts.md).

`AlertWatch` finds them while the run goes on, from the steps that it remembers.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 10
"""The first and the last steps of a run whose means are compared; alerts need twice as many steps."""
ENTROPY_LEFT = 0.1
"""The share of the first entropy below which it has collapsed."""
SOLVED_SPREAD = 0.7
"""If rewards rose and vary at most by this share of what they did, the entropy fell because the task is
solved: half of their variance is gone. The quickstart has 0.56 at its step 20."""
REWARD_FALL = 0.4
"""The fall of the mean reward, in first standard deviations, that is more than the noise of small batches."""
LENGTH_FACTOR, REWARD_GAIN = 1.5, 0.1
"""Growth of the responses that is suspicious if the reward gained less than this share of its first standard
deviation."""
MAX_KL = {"train/kl_loss": 0.5, "train/approx_kl": 0.1}
"""Nats per token from the reference, and from the policy that generated."""
MISMATCH_FACTOR, MIN_MISMATCH = 3.0, 0.01
"""Growth of the gap between the log-probs of engine and trainer, and the gap in nats from which it counts."""
MAX_DROPPED = 0.75
"""The share of groups that are not trained on from which the run starves."""

MAX_LOST = 0.1
"""The share of executions without a reward from which the rewards may be a selection."""
Metrics = Mapping[str, float | None]
STEPS = 20
"""How many steps back the figures look."""
_FAILED, _LATE = "rollout/failed/", "rollout/dropped_samples/generation/timeout"


@dataclass(frozen=True, slots=True)
class Alert:
    """One sign, with the figures that it was seen in."""

    name: str
    """The heading in docs/alerts.md, and the end of the metric `alerts/<name>`."""
    sentence: str

    @property
    def line(self) -> str:
        """The alert as the log, `rlrun status` and trackers show it."""
        return f"alert {self.name}: {self.sentence} (docs/alerts.md)"


def find_alerts(steps: Sequence[Metrics], batch_size: int) -> list[Alert]:
    """Returns the alerts that hold now, given at least the first and the last `WINDOW` steps of a run.

    `batch_size`: the number of groups that a step trains on.
    """
    taken = [metrics for metrics in steps if metrics.get("perf/step_time")]
    if len(taken) < 2 * WINDOW:
        return []
    first, last = taken[:WINDOW], taken[-WINDOW:]
    found = (
        _entropy_collapse(first, last),
        _reward_drop(first, last),
        _length_growth(first, last),
        _kl_growth(last),
        _mismatch_growth(first, last),
        _starvation(last, batch_size),
        _lost_executions(last),
    )
    return [alert for alert in found if alert is not None]


def _entropy_collapse(first: Sequence[Metrics], last: Sequence[Metrics]) -> Alert | None:
    before, now = _means("train/entropy", first, last)
    if before is None or now is None or now >= ENTROPY_LEFT * before or _is_solved(first, last):
        return None
    return Alert(
        "entropy_collapse",
        f"entropy fell from {before:.3g} to {now:.3g}: it explores little and may not change any more",
    )


def _is_solved(first: Sequence[Metrics], last: Sequence[Metrics]) -> bool:
    reward, later = _means("rollout/reward/mean", first, last)
    spread, later_spread = _means("rollout/reward/std", first, last)
    if reward is None or later is None or spread is None or later_spread is None:
        return False
    return later > reward and later_spread <= SOLVED_SPREAD * spread


def _reward_drop(first: Sequence[Metrics], last: Sequence[Metrics]) -> Alert | None:
    reward, later = _means("rollout/reward/mean", first, last)
    spread = _mean("rollout/reward/std", first)
    if reward is None or later is None or not spread or reward - later < REWARD_FALL * spread:
        return None
    return Alert(
        "reward_drop",
        f"the reward fell from {reward:.3g} to {later:.3g}: lower trainer.lr, or go back to a checkpoint",
    )


def _length_growth(first: Sequence[Metrics], last: Sequence[Metrics]) -> Alert | None:
    before, now = _means("rollout/response_len/mean", first, last)
    reward, later = _means("rollout/reward/mean", first, last)
    spread = _mean("rollout/reward/std", first) or 0.0
    if before is None or now is None or reward is None or later is None:
        return None
    if now < LENGTH_FACTOR * before or later - reward >= REWARD_GAIN * spread:
        return None
    return Alert(
        "length_growth",
        f"responses grew from {before:.0f} to {now:.0f} tokens, and the reward went from {reward:.3g} to "
        f"{later:.3g}: read some samples for a habit that costs tokens and gains nothing",
    )


def _kl_growth(last: Sequence[Metrics]) -> Alert | None:
    for name, most in MAX_KL.items():
        now = _mean(name, last)
        if now is not None and now > most:
            return Alert(
                "kl_growth", f"{name} is {now:.3g}, above {most:g}: the policy moves far; lower trainer.lr"
            )
    return None


def _mismatch_growth(first: Sequence[Metrics], last: Sequence[Metrics]) -> Alert | None:
    before, now = _means("train/train_rollout_logprob_abs_diff", first, last)
    if before is None or now is None or now < MIN_MISMATCH or now < MISMATCH_FACTOR * before:
        return None
    return Alert(
        "mismatch_growth",
        f"the log-probs of engine and trainer differ by {now:.3g}, and by {before:.3g} in the first steps: "
        "the samples are of another policy than the one that is trained",
    )


def _starvation(last: Sequence[Metrics], batch_size: int) -> Alert | None:
    reasons = {name for metrics in last for name in metrics if name.startswith("rollout/dropped/")}
    dropped = sum(metrics.get(name) or 0.0 for metrics in last for name in reasons)
    share = dropped / (dropped + batch_size * len(last))
    if share < MAX_DROPPED:
        return None
    return Alert(
        "starvation",
        f"{share:.0%} of the groups are not trained on".replace("%", " %")
        + ": rollout/dropped names the reasons; prompts may be too easy or too hard, "
        'which `[data] type = "curriculum"` avoids',
    )


def _lost_executions(last: Sequence[Metrics]) -> Alert | None:
    losses = find_losses(last)
    if losses is None or losses.share <= MAX_LOST:
        return None
    return Alert("lost_executions", losses.sentence)


def _means(name: str, first: Sequence[Metrics], last: Sequence[Metrics]) -> tuple[float | None, float | None]:
    return _mean(name, first), _mean(name, last)


def _mean(name: str, steps: Iterable[Metrics]) -> float | None:
    values = [value for metrics in steps if (value := metrics.get(name)) is not None]
    return sum(values) / len(values) if values else None


class AlertWatch:
    """Remembers the first and the last steps of a run, and which alerts were reported."""

    def __init__(self) -> None:
        self._first: list[Mapping[str, Any]] = []
        self._last: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        self._batch_size = 1
        self._reported: set[str] = set()

    def begin(self, lines: Iterable[Mapping[str, Any]], batch_size: int | None = None) -> None:
        """Starts from the lines that metrics.jsonl has, and forgets the steps before.

        `batch_size`: the number of groups that a step trains on; None: as before.
        """
        self._first, self._batch_size = [], batch_size or self._batch_size
        self._last.clear()
        for line in lines:
            self._remember(line)

    def add(self, metrics: Mapping[str, Any]) -> tuple[list[Alert], dict[str, float]]:
        """Adds a step; returns the alerts to report, and the metrics `alerts/…` of all that hold.

        An alert is reported once, until it no longer holds.
        """
        self._remember(metrics)
        alerts = find_alerts([*self._first, *self._last], self._batch_size)
        names = {alert.name for alert in alerts}
        new = [alert for alert in alerts if alert.name not in self._reported]
        ended = self._reported - names
        self._reported = names
        return new, {f"alerts/{name}": float(name in names) for name in sorted(names | ended)}

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        if not metrics.get("perf/step_time"):
            return
        if len(self._first) < WINDOW:
            self._first.append(metrics)
        else:
            self._last.append(metrics)


@dataclass(frozen=True, slots=True)
class Losses:
    """The executions that have no reward, because they failed or ran out of time."""

    share: float
    """Their share of all executions, as the mean over the steps."""
    bias: float
    """How far the mean reward can be from the one that it would be without losses."""
    samples: Mapping[str, int]
    """Lost samples by type, the most frequent first."""

    @property
    def sentence(self) -> str:
        """What `rlrun status` shows."""
        types = ", ".join(f"{count} {kind}" for kind, count in self.samples.items())
        return (
            f"{100 * self.share:.2g} % of the executions of the last steps have no reward ({types}); the "
            f"mean reward is off by at most {self.bias:.2g}"
        )


def find_losses(steps: Sequence[Metrics]) -> Losses | None:
    """Returns the losses of the newest `STEPS` steps; None if nothing was lost.

    Each lost execution has a reward that nobody knows, within the range of the rewards that were seen. If all
    of them were at one end of the range and all others at the other, the mean would differ by share × range.
    """
    newest = [metrics for metrics in steps if metrics.get("rollout/lost_frac") is not None][-STEPS:]
    share = sum(metrics["rollout/lost_frac"] or 0.0 for metrics in newest) / max(1, len(newest))
    if not share:
        return None
    lowest = [low for metrics in newest if (low := metrics.get("rollout/reward/min")) is not None]
    highest = [high for metrics in newest if (high := metrics.get("rollout/reward/max")) is not None]
    bias = share * (max(highest) - min(lowest)) if lowest and highest else 0.0
    samples: Counter[str] = Counter()
    for metrics in newest:
        for name, value in metrics.items():
            if name.startswith(_FAILED):
                samples[name.removeprefix(_FAILED)] += int(value or 0)
        if late := metrics.get(_LATE):
            samples["late"] += int(late)
    return Losses(share, bias, dict(samples.most_common()))
