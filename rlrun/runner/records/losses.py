"""What executions without a reward may have done to the mean reward; pure functions of a run's metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Metrics = Mapping[str, float | None]
STEPS = 20
"""How many steps back the figures look."""
_FAILED, _LATE = "rollout/failed/", "rollout/dropped_samples/generation/timeout"


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
