"""A number is to be found; the closer a guess, the higher its reward (docs/environments.md)."""

import re
from typing import Any

import rlrun
from rlrun.plugins.agent_task import AgentTask


@rlrun.environment
class Game:
    """Each wrong guess is answered with `higher` or `lower`."""

    def __init__(self, *, high: int = 20, guesses: int = 3):
        self.high, self.guesses = high, guesses

    def tasks(self) -> list[dict[str, Any]]:
        """Returns the rows; `label` and `metadata` may hold what `reset` needs."""
        prompt = f"Find a number from 1 to {self.high}."
        return [{"id": str(n), "prompt": prompt, "label": n} for n in range(1, self.high + 1)]

    def reset(self, task: AgentTask) -> None:
        """Begins an execution."""
        self.number, self.left = task.label, self.guesses

    def step(self, action: str) -> tuple[str, float, bool]:
        """Returns what the policy reads next, the reward of its action, and whether that was the end."""
        self.left -= 1
        numbers = re.findall(r"\d+", action)
        off = abs((int(numbers[-1]) if numbers else 0) - self.number)
        hint = "higher" if not numbers or int(numbers[-1]) < self.number else "lower"
        return hint, max(0.0, 1 - off / self.high) / self.guesses, off == 0 or self.left == 0
