"""Grades the boxed answer that follows the reasoning, as DeepScaleR does
(https://github.com/agentica-project/rllm).
"""

from rlrun.plugins.rewards.math import boxed_answer_is
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section

MARKERS = ("</think>", "###Response")


class DeepScalerParams(Section):
    """The reward has no parameters."""


class DeepScaler(NeedsLabel):
    """Scores 1 if the last box after the last `</think>` holds the label; 0 otherwise, or if thinking never
    ends.

    Without a `</think>`, the last `###Response` ends the reasoning (DeepScaleR itself uses the first).
    """

    Params = DeepScalerParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: DeepScalerParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns 1 for the right answer and 0 for a wrong or missing one."""
        for marker in MARKERS:
            _, found, solution = sample.text.rpartition(marker)
            if found:
                return float(boxed_answer_is(solution, sample.prompt.row.label))
        return 0.0
