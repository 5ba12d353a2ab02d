"""Drops prompts that were too easy or too hard in each of their last visits.

A single group of only right or only wrong answers may be chance; several in a row show that the policy cannot
learn from the prompt at this stage. A dropped prompt returns in the next epoch, and is judged again.
"""

from collections import deque
from typing import Any, Literal

from pydantic import Field

from rlrun.plugins.thresholds import reaches
from rlrun.plugins.types import Drop, Group, last_samples
from rlrun.specs.sections.section import Section

Outcome = Literal["always", "never", "sometimes"]


class OnlineDifficultyParams(Section):
    """How many visits are considered, and when a sample solves its prompt."""

    window: int = Field(default=3, ge=1)
    """The number of visits, including this one, that must have the same outcome for a prompt to be
    dropped."""
    solved: float = 1.0
    """A sample with at least this reward solves the prompt."""
    keep_when_short: bool = False
    """Use dropped groups after all when the step would otherwise end with too few groups."""


class OnlineDifficulty:
    """Drops a prompt if all executions, or none, solved it in each of its last `window` visits.

    An execution with several samples solves its prompt by its last one.
    """

    Params = OnlineDifficultyParams
    api_version = 1

    def __init__(self, params: OnlineDifficultyParams) -> None:
        self.params = params
        self.keep_when_short = params.keep_when_short
        self._visits: dict[str, deque[Outcome]] = {}

    def __call__(self, group: Group) -> Drop | None:
        """Returns the verdict with the reason `always` or `never`."""
        visits = self._visits.setdefault(group.prompt.row.id, deque(maxlen=self.params.window))
        visits.append(self._outcome(group))
        if len(visits) < self.params.window or len(set(visits)) > 1 or visits[-1] == "sometimes":
            return None
        return Drop(visits[-1])

    def state(self) -> dict[str, Any]:
        """Returns the outcomes of the last visits of every prompt, by row id."""
        return {row: list(visits) for row, visits in self._visits.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores saved visits: of each prompt the last `window`."""
        self._visits = {row: deque(visits, maxlen=self.params.window) for row, visits in state.items()}

    def _outcome(self, group: Group) -> Outcome:
        executions = last_samples(group.samples)
        solved = sum(reaches(sample.reward, self.params.solved) for sample in executions)
        if solved == len(executions):
            return "always"
        return "sometimes" if solved else "never"
