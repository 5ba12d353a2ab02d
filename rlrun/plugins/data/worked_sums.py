"""Demonstrations for reasoning-gym's `chain_sum`. Some add term by term, the others only state the answer."""

from random import Random
from typing import Any

from pydantic import Field

from rlrun.plugins.data.reasoning_gym import QUESTION, make_task
from rlrun.plugins.types import Row
from rlrun.specs.sections.section import Section

TASK = "chain_sum"


class WorkedSumsParams(Section):
    """The settings of the sums, and the share of demonstrations that show their steps."""

    size: int = Field(default=1000, ge=1)
    """Number of rows."""
    seed: int = Field(default=0, ge=0)
    """Seed of the rows. As in reasoning-gym, row i of seed s is row 0 of seed s + i."""
    task_params: dict[str, Any] = Field(default_factory=dict)
    """Settings of `chain_sum`, such as `{ min_terms = 2, max_terms = 4 }`."""
    worked_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the rows whose demonstration has a line for each operation before the answer."""
    worked_first: int = Field(default=0, ge=0)
    """Number of rows at the beginning that all show their steps, whatever the share."""
    prompt_template: str = QUESTION
    """The prompt; `{question}` is replaced by the task's question."""


class WorkedSums:
    """Row i is sum i, with an answer in `<answer>` tags that follows its steps or stands alone.

    The quickstart's model was trained on these demonstrations.
    """

    Params = WorkedSumsParams
    api_version = 1

    def __init__(self, params: WorkedSumsParams) -> None:
        """Raises ValueError for settings that `chain_sum` does not take."""
        self.params = params
        self._dataset = make_task(TASK, {**params.task_params, "seed": params.seed, "size": params.size})

    def __len__(self) -> int:
        return self.params.size

    def __getitem__(self, index: int) -> Row:
        entry = self._dataset[index]
        answer = f"<answer>{entry['answer']}</answer>"
        steps = worked_steps(entry["metadata"]["expression"]) if self._is_worked(index) else []
        return Row(
            id=str(index),
            prompt=self.params.prompt_template.replace(QUESTION, entry["question"]),
            label=entry["answer"],
            response="\n".join([*steps, answer]),
        )

    def _is_worked(self, index: int) -> bool:
        chance = Random(f"{self.params.seed}:{index}").random()
        return index < self.params.worked_first or chance < self.params.worked_share


def worked_steps(expression: str) -> list[str]:
    """Returns one equation per operation: `"12 + 34 - 5"` gives `["12 + 34 = 46", "46 - 5 = 41"]`."""
    first, *operations = expression.split()
    total, steps = int(first), []
    for operator, term in zip(operations[::2], operations[1::2], strict=True):
        result = total + int(term) if operator == "+" else total - int(term)
        steps.append(f"{total} {operator} {term} = {result}")
        total = result
    return steps
