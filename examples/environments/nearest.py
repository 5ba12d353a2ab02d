"""A number is to be found; the closer a guess, the higher its reward."""

import re

import rlrun


@rlrun.environment
class Nearest:
    def __init__(self, *, high: int = 50, guesses: int = 3):
        self.high, self.guesses = high, guesses

    def tasks(self):
        prompt = f"Find a number from 1 to {self.high}."
        return [{"id": str(n), "prompt": prompt, "label": n} for n in range(1, self.high + 1)]

    def reset(self, task):
        self.number, self.left = task.label, self.guesses

    def step(self, action):
        self.left -= 1
        numbers = re.findall(r"\d+", action)
        guess = int(numbers[-1]) if numbers else 0
        off = abs(guess - self.number)
        observation = "higher" if guess < self.number else "lower"
        reward = max(0.0, 1 - off / self.high) / self.guesses
        done = off == 0 or self.left == 0
        return observation, reward, done, {"off": off}
