"""Drops prompts that have become too easy, or are still too hard, over their last visits.

One group of all right or all wrong answers may be chance; several in a row say that the prompt teaches
nothing at this stage. A prompt that was dropped comes again with its next epoch, and is judged again.
"""

from collections import deque
from typing import Any, Literal

from pydantic import Field

from rlrun.plugins.thresholds import reaches
from rlrun.plugins.types import Drop, Group
from rlrun.specs.sections.section import Section

Outcome = Literal["always", "never", "sometimes"]


class OnlineDifficultyParams(Section):
    """How long a prompt is given, and what counts as solved."""

    window: int = Field(default=3, ge=1)
    """Visits of a prompt, this one included, that must all have the same outcome for it to be dropped."""
    solved: float = 1.0
    """A sample with this reward or more solves the prompt."""
    keep_when_short: bool = False
    """Keep such a group after all when the step would otherwise end with too few groups."""


class OnlineDifficulty:
    """Drops a prompt that every sample, or none, has solved in each of its last `window` visits."""

    Params = OnlineDifficultyParams
    api_version = 1

    def __init__(self, params: OnlineDifficultyParams) -> None:
        self.params = params
        self.keep_when_short = params.keep_when_short
        self._visits: dict[str, deque[Outcome]] = {}

    def __call__(self, group: Group) -> Drop | None:
        """Reasons: `always`, `never`."""
        visits = self._visits.setdefault(group.prompt.row.id, deque(maxlen=self.params.window))
        visits.append(self._outcome(group))
        if len(visits) < self.params.window or len(set(visits)) > 1 or visits[-1] == "sometimes":
            return None
        return Drop(visits[-1])

    def state(self) -> dict[str, Any]:
        """The last visits of every prompt, by row."""
        return {row: list(visits) for row, visits in self._visits.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from saved visits, as many as the window holds."""
        self._visits = {row: deque(visits, maxlen=self.params.window) for row, visits in state.items()}

    def _outcome(self, group: Group) -> Outcome:
        solved = sum(reaches(sample.reward, self.params.solved) for sample in group.samples)
        if solved == len(group.samples):
            return "always"
        return "sometimes" if solved else "never"
