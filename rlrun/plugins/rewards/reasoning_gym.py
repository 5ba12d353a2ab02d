"""Scores an answer with the scorer of its reasoning-gym task (https://arxiv.org/abs/2505.24760)."""

import json
from typing import Any

from pydantic import Field

from rlrun.plugins.data.reasoning_gym import import_library, make_task
from rlrun.plugins.rewards.extraction import Pattern, last_match
from rlrun.plugins.thresholds import reaches
from rlrun.plugins.types import Row, Sample
from rlrun.specs.sections.section import Section


class ReasoningGymParams(Section):
    """Which part of the response is the answer, and which scores count."""

    answer_pattern: Pattern | None = None
    """Regular expression; the first group of its last match is the answer. None: the whole response."""
    threshold: float = Field(default=0.0, ge=0, le=1)
    """Scores below this count as 0: tasks give some credit to answers that merely contain the right one."""


class ReasoningGym:
    """Scores rows of the `reasoning_gym` data source, whose metadata hold the task's name and the entry."""

    Params = ReasoningGymParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: ReasoningGymParams) -> None:
        import_library()  # a second, paid before the first sample's clock runs
        self.params = params
        self._tasks: dict[str, Any] = {}

    @classmethod
    def check_row(cls, params: ReasoningGymParams, row: Row) -> None:
        """Raises ValueError for a row of another data source."""
        if not {"task", "task_params", "entry"} <= row.metadata.keys():
            raise ValueError("the row has no reasoning-gym entry; use the reasoning_gym data source")

    def score(self, sample: Sample) -> float:
        """Returns the task's score, from 0 to 1, and 0 without an answer. Raises ValueError for a row of
        another source.
        """
        metadata = sample.prompt.row.metadata
        self.check_row(self.params, sample.prompt.row)
        answer = last_match(sample.text, self.params.answer_pattern)
        if answer is None:
            return 0.0
        task = self._task(metadata["task"], metadata["task_params"])
        score = float(task.score_answer(answer, metadata["entry"]))
        return score if reaches(score, self.params.threshold) else 0.0

    def _task(self, name: str, settings: dict[str, Any]) -> Any:
        key = json.dumps([name, settings], sort_keys=True, default=str)
        if key not in self._tasks:
            self._tasks[key] = make_task(name, settings)
        return self._tasks[key]
