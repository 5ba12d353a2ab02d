"""Declares the metrics of optimizer steps, and how those of a step and of all ranks become one number.

A metric is declared here before it can be measured (`rlrun.runner.trainer.passes.meter`), so that a minimum
is never averaged and a flag never summed. Token metrics of algorithms, whose names rlrun does not know, are
means.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from rlrun.runner.contracts.carriers import DIFFERENCE

Value = TypeVar("Value")


class Combination(StrEnum):
    """How the values of a metric in a step's optimizer steps are combined."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LAST = "last"


COMBINATIONS: Mapping[str, Combination] = {
    "train/loss": Combination.MEAN,
    "train/ce_loss": Combination.MEAN,
    "train/ce_tokens": Combination.SUM,
    "train/grad_norm": Combination.MEAN,
    "train/mtp_loss": Combination.MEAN,
    "train/mtp_accuracy": Combination.MEAN,
    "train/mtp_grad_norm": Combination.MEAN,
    "train/tokens": Combination.SUM,
    "train/response_tokens": Combination.SUM,
    "train/skipped_steps": Combination.SUM,
    "train/lr": Combination.LAST,
    DIFFERENCE: Combination.MEAN,
    f"{DIFFERENCE}_max": Combination.MAX,
    "train/expert_load_max": Combination.MAX,
    "train/expert_load_min": Combination.MIN,
    "train/critic/loss": Combination.MEAN,
    "train/critic/grad_norm": Combination.MEAN,
    "train/critic/skipped_steps": Combination.SUM,
    "train/critic/lr": Combination.LAST,
    "perf/forward_time": Combination.SUM,
    "perf/backward_time": Combination.SUM,
    "perf/pipeline_time": Combination.SUM,
    "perf/optimizer_time": Combination.SUM,
    "perf/precision_emulated": Combination.MAX,
}
"""The metrics that rlrun measures itself. Those of an algorithm's losses are absent."""


def algorithm_metrics(values: Mapping[str, Value]) -> dict[str, Value]:
    """Returns an algorithm's values by their names as metrics. ValueError if a name is one of rlrun's."""
    named = {f"train/{name}": value for name, value in values.items()}
    if taken := sorted(named.keys() & COMBINATIONS.keys()):
        raise ValueError(
            f"the algorithm returns the metric {taken[0].removeprefix('train/')!r}, which is measured by "
            "rlrun: give it another name"
        )
    return named


def combine_updates(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics of a step: those of its optimizer steps, each combined as it is declared."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: _combined(name, [update[name] for update in updates if name in update]) for name in names}


def combine_ranks(metrics_by_rank: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics of an optimizer step: times of the slowest rank, and all others of any rank, since
    ranks reduce them.
    """
    first = dict(metrics_by_rank[0])
    own = {name for name in first if name.startswith("perf/")}
    return first | {name: max(metrics[name] for metrics in metrics_by_rank) for name in own}


def _combined(name: str, values: Sequence[float]) -> float:
    match COMBINATIONS.get(name, Combination.MEAN):
        case Combination.MEAN:
            return sum(values) / len(values)
        case Combination.SUM:
            return sum(values)
        case Combination.MAX:
            return max(values)
        case Combination.MIN:
            return min(values)
        case Combination.LAST:
            return values[-1]
