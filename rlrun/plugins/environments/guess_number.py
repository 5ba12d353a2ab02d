"""A number is to be guessed over several turns: each wrong guess is answered with `higher` or `lower`."""

import re
from typing import Any

from pydantic import Field, model_validator

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.environments.turn import Turn
from rlrun.specs.sections.section import Section

_NUMBER = re.compile(r"\d+")


class GuessNumberParams(Section):
    """The range of the numbers, and the number of guesses."""

    low: int = Field(default=1, ge=0)
    """Smallest number."""
    high: int = 9
    """Largest number."""
    guesses: int = Field(default=4, ge=1)
    """Number of guesses. With n of them, halving the range finds every one of 2^n - 1 numbers."""
    prompt: str = "Guess a number from {low} to {high}."
    """The first message; `{low}` and `{high}` are replaced."""

    @model_validator(mode="after")
    def _some_numbers(self) -> "GuessNumberParams":
        if self.high <= self.low:
            raise ValueError(f"high = {self.high} is not above low = {self.low}")
        return self


class GuessNumber:
    """There is one task for each number. The reward is 1 for a right guess, and 0 if all guesses are wrong.

    The last number in an answer is the guess. An answer without a number uses up a guess.
    """

    Params = GuessNumberParams
    api_version = 1

    def __init__(self, params: GuessNumberParams) -> None:
        self.params = params
        self._secret = self._guesses = 0

    def tasks(self) -> list[dict[str, Any]]:
        """Returns a task for each number."""
        low, high = self.params.low, self.params.high
        prompt = self.params.prompt.replace("{low}", str(low)).replace("{high}", str(high))
        return [{"id": str(number), "prompt": prompt, "label": number} for number in range(low, high + 1)]

    def reset(self, task: AgentTask) -> None:
        """Begins with the task's number."""
        self._secret, self._guesses = int(task.label), 0

    def step(self, action: str) -> Turn:
        """Returns `higher` or `lower`, or ends the game."""
        self._guesses += 1
        numbers = _NUMBER.findall(action)
        info = {"solved": float(bool(numbers) and int(numbers[-1]) == self._secret), "guesses": self._guesses}
        if info["solved"] or self._guesses == self.params.guesses:
            return Turn(None, info["solved"], True, info)
        if not numbers:
            return Turn("a number, please", 0.0, False, info)
        return Turn("higher" if int(numbers[-1]) < self._secret else "lower", 0.0, False, info)
