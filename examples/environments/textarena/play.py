"""Writes games of TextArena's GuessTheNumber as demonstrations of how one may play it.

    /opt/games/bin/python examples/environments/textarena/play.py

In one game in four, the player halves the range with each guess. In all others, the guesses are random.
"""

import json
import random
from pathlib import Path

import textarena

GAMES_FILE = Path(__file__).parents[3] / "build" / "games.jsonl"
GAMES = 1500
HIGH, TURNS = 15, 3
FIRST_SEED = 1_000_000
"""Far from the seeds of the games that are trained on."""


def play(seed: int, chance: random.Random) -> list[dict[str, str]]:
    """Returns the messages of a game, the answers included."""
    game = textarena.make("GuessTheNumber-v0-raw", max_number=HIGH, max_turns=TURNS)
    game.reset(num_players=1, seed=seed)
    halves, guesses = chance.random() < 0.25, chance.sample(range(1, HIGH + 1), HIGH)
    low, high, guess = 1, HIGH, 0
    messages: list[dict[str, str]] = []
    done = False
    while not done:
        _, news = game.get_observation()
        said = [text for _, text, kind in news if kind != textarena.ObservationType.PLAYER_ACTION]
        if messages:
            low, high = (guess + 1, high) if "higher" in said[0] else (low, guess - 1)
        guess = (low + high) // 2 if halves else guesses.pop()
        messages.append({"role": "user", "content": "\n".join(said)})
        messages.append({"role": "assistant", "content": f"[{guess}]"})
        done, _ = game.step(action=f"[{guess}]")
    return messages


def main() -> None:
    """Writes each game as one row."""
    chance = random.Random(0)
    GAMES_FILE.parent.mkdir(exist_ok=True)
    with GAMES_FILE.open("w") as file:
        for number in range(GAMES):
            row = {"id": str(number), "messages": play(FIRST_SEED + number, chance)}
            file.write(f"{json.dumps(row)}\n")


if __name__ == "__main__":
    main()
