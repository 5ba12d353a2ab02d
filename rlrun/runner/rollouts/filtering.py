"""Step 4: runs the filters on a scored group, one after another.

group ──▶ filter ──▶ filter … ──▶ the group to train on, with some samples removed or masked
             └── Drop: the whole group is dropped
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.plugins.protocols import Filter
from rlrun.plugins.types import Drop, Group, Mask
from rlrun.runner.rollouts.grouping import without_samples

Reason = tuple[str, str]
"""The name of a filter (or `generation`, `probe`, `truncated`, `staleness`, `buffer`), and its reason."""


@dataclass(slots=True)
class FilterResult:
    """A group after all filters, or up to the filter that dropped it."""

    group: Group
    dropped: Reason | None = None
    """Why the whole group was dropped; None: it was kept."""
    is_spare: bool = False
    """The filter that dropped the group has `keep_when_short`: use it rather than let the step starve."""
    dropped_samples: Counter[Reason] = field(default_factory=Counter)
    masked_samples: Counter[Reason] = field(default_factory=Counter)


class Filters:
    """The filters of a spec, in order."""

    def __init__(self, named: Sequence[tuple[str, Filter]]) -> None:
        """`named` pairs each filter with the name that its drops are counted under."""
        self._named = list(named)

    def apply(self, group: Group) -> FilterResult:
        """Runs each filter on the samples that the filters before it kept."""
        result = FilterResult(group)
        for name, filter in self._named:
            verdict = filter(result.group)
            if verdict is None:
                continue
            reason = name, verdict.reason
            _note_verdict(result.group, verdict, "/".join(reason))
            if isinstance(verdict, Mask):
                result.masked_samples[reason] += _mask(result.group, verdict.samples)
            elif verdict.samples is not None:
                result.dropped_samples[reason] += len(set(verdict.samples))
                result.group = without_samples(result.group, verdict.samples)
            if _drops_group(verdict, result.group):
                result.dropped = reason
                result.is_spare = verdict.samples is None and getattr(filter, "keep_when_short", False)
                break
        return result

    def state(self) -> dict[str, Any]:
        """Returns the state of each filter that has one, by name, as JSON values."""
        return {name: filter.state() for name, filter in self._named if hasattr(filter, "state")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state; a filter that is new in the spec starts without one."""
        for name, filter in self._named:
            if name in state and hasattr(filter, "restore"):
                filter.restore(state[name])


def _drops_group(verdict: Drop | Mask, remaining: Group) -> bool:
    return not remaining.samples or (isinstance(verdict, Drop) and verdict.samples is None)


def _note_verdict(group: Group, verdict: Drop | Mask, reason: str) -> None:
    """Notes a filter's decision on the samples that it concerns."""
    indices = range(len(group.samples)) if verdict.samples is None else sorted(set(verdict.samples))
    for index in indices:
        group.samples[index].verdicts.append(reason)


def _mask(group: Group, indices: Collection[int]) -> int:
    """Sets the loss mask of these samples to zero, and returns how many they are."""
    for index in set(indices):
        group.samples[index].stop_training()
    return len(set(indices))
