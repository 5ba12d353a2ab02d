"""examples/environments/textarena: demonstrations, and the first steps of both jobs.

It plays against a stand-in of TextArena, and against TextArena itself where RLRUN_TEXTARENA_PYTHON names an
interpreter that has it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.paths import RECIPES
from tests.integration.jobs import Jobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "environments" / "textarena"
INTERPRETER = os.environ.get("RLRUN_TEXTARENA_PYTHON")
STAND_IN = '''
"""Answers as TextArena 0.7.4 does for GuessTheNumber."""

import random
import re
from enum import Enum

ObservationType = Enum("ObservationType", ["PROMPT", "PLAYER_ACTION", "GAME_MESSAGE"])


class Game:
    def __init__(self, max_number, max_turns):
        self.high, self.turns = max_number, max_turns

    def reset(self, num_players, seed):
        self.number, self.made = random.Random(seed).randint(1, self.high), 0
        self.news = [(-1, f"Guess the number between 1 and {self.high}.", ObservationType.PROMPT)]

    def get_observation(self):
        news, self.news = self.news, []
        return 0, news

    def step(self, action):
        self.made += 1
        found = re.search("[0-9]+", action)
        self.guess = int(found[0]) if found else 0
        hint = "lower" if self.guess > self.number else "higher"
        self.news = [
            (0, action, ObservationType.PLAYER_ACTION),
            (-1, f"The target number is {hint}.", ObservationType.GAME_MESSAGE),
        ]
        return self.guess == self.number or self.made > self.turns, {}

    def close(self):
        return {0: 1 - abs(self.guess - self.number) / self.high}, {0: {"invalid_move": False}}


def make(name, **settings):
    return Game(**settings)
'''


@pytest.mark.parametrize("name", ["warm", "guess"])
def test_the_specs_are_valid(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "examples" / "environments" / "textarena"
    shutil.copytree(EXAMPLE, folder)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "games.jsonl").write_text('{"messages": []}\n')
    shutil.copytree(RECIPES / "quickstart" / "model", tmp_path / "runs" / "guess-warm" / "model")
    assert load_checked_spec([folder / f"{name}.toml"]).spec.trainer.steps == 80


@pytest.mark.slow
@pytest.mark.parametrize("library", ["stand-in", "real"])
def test_their_first_steps_run(library: str, jobs: Jobs) -> None:
    if library == "real" and INTERPRETER is None:
        pytest.skip("RLRUN_TEXTARENA_PYTHON names no interpreter with TextArena")
    interpreter, variables = INTERPRETER or "", dict(os.environ)
    if library == "stand-in":
        interpreter, variables = sys.executable, os.environ | jobs.environment
        (Path(jobs.environment["PYTHONPATH"].split(os.pathsep)[0]) / "textarena.py").write_text(STAND_IN)
    shutil.rmtree(jobs.folder / "runs", ignore_errors=True)
    folder = jobs.folder / "examples" / "environments" / "textarena"
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    script = folder / "play.py"
    script.write_text(script.read_text().replace("GAMES = 1500", "GAMES = 16"))
    subprocess.run([interpreter, script], check=True, env=variables)
    games = [json.loads(line) for line in (jobs.folder / "build" / "games.jsonl").read_text().splitlines()]
    assert len(games) == 16 and all(game["messages"][-1]["role"] == "assistant" for game in games)
    few = {"trainer__steps": 2, "trainer__warmup_steps": 1}
    warm = jobs.run("guess-warm", spec=str(folder / "warm.toml"), **few, trainer__global_batch_size=8)
    assert warm.code == 0, warm.output
    settings = {"rollout__batch_size": 2, "rollout__samples_per_prompt": 4}
    environment = {"data__environment__python": interpreter}
    ended = jobs.run("guess", spec=str(folder / "guess.toml"), **few, **settings, **environment)
    assert ended.code == 0, ended.output
    rewards = [line["rollout/reward/mean"] for line in ended.metrics if "rollout/reward/mean" in line]
    assert len(rewards) == 2 and all(0 <= reward <= 1 for reward in rewards)
