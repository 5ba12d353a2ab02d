"""Step 4: what filters say of a scored group, and what they remember from one to the next.

group ──▶ filter ──▶ filter … ──▶ the group as it is trained on: less some samples, some of them masked
             └── Drop: nothing of it is
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.plugins.protocols import Filter
from rlrun.plugins.types import Drop, Group, Mask

Verdict = tuple[str, str]
"""A filter's name and its reason."""


@dataclass(slots=True)
class Judged:
    """A group after all filters, or up to the one that dropped it."""

    group: Group
    dropped: Verdict | None = None
    """Who dropped the whole group."""
    spare: bool = False
    """That filter would rather keep it than let the step starve."""
    dropped_samples: Counter[Verdict] = field(default_factory=Counter)
    masked_samples: Counter[Verdict] = field(default_factory=Counter)


class Filters:
    """A spec's filters, in order."""

    def __init__(self, named: Sequence[tuple[str, Filter]]) -> None:
        """By the names their verdicts are counted under."""
        self._named = list(named)

    def judge(self, group: Group) -> Judged:
        """Ask each filter of what those before it have left."""
        judged = Judged(group)
        for name, judge in self._named:
            verdict = judge(judged.group)
            if verdict is None:
                continue
            who = name, verdict.reason
            if isinstance(verdict, Mask):
                judged.masked_samples[who] += _mask(judged.group, verdict.samples)
            elif verdict.samples is not None:
                judged.dropped_samples[who] += len(set(verdict.samples))
                judged.group = _without(judged.group, verdict.samples)
            if _drops_all(verdict, judged.group):
                judged.dropped = who
                judged.spare = verdict.samples is None and getattr(judge, "keep_when_short", False)
                break
        return judged

    def state(self) -> dict[str, Any]:
        """What filters remember, by name; JSON values."""
        return {name: judge.state() for name, judge in self._named if hasattr(judge, "state")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; a filter that is new begins without one."""
        for name, judge in self._named:
            if name in state and hasattr(judge, "restore"):
                judge.restore(state[name])


def _drops_all(verdict: Drop | Mask, left: Group) -> bool:
    return not left.samples or (isinstance(verdict, Drop) and verdict.samples is None)


def _mask(group: Group, places: Collection[int]) -> int:
    """Train none of these samples; how many that are."""
    for place in set(places):
        sample = group.samples[place]
        sample.loss_mask = np.zeros_like(sample.loss_mask)
    return len(set(places))


def _without(group: Group, places: Collection[int]) -> Group:
    return Group(group.prompt, [one for place, one in enumerate(group.samples) if place not in set(places)])
