"""The adapter of TextArena, with a module that answers as TextArena 0.7.4 does for a game of two players."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.registry import build

PROMPT, ACTION, BOARD = "prompt", "action", "board"


class Game:
    """The later letter wins; the game ends after a move of each player."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.moves = settings, list[str]()

    def reset(self, num_players: int, seed: int) -> None:
        self.seed, self.players = seed, num_players
        self.new = {player: [(-1, f"You are {player}.", PROMPT)] for player in range(num_players)}

    def get_observation(self) -> tuple[int, list[tuple[int, str, str]]]:
        player = len(self.moves)
        observations, self.new[player] = self.new[player], []
        return player, observations

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        for new in self.new.values():
            new += [(len(self.moves), action, ACTION), (-1, f"Board: {action}", BOARD)]
        self.moves.append(action)
        return len(self.moves) == self.players, {}

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
        won = 1.0 if self.moves[0] > self.moves[-1] else -1.0
        return {0: won, 1: -won}, {0: {"invalid_move": False}, 1: {"invalid_move": True}}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Game]]:
    """The games that were made, with their ids."""
    games: list[tuple[str, Game]] = []

    def make(game: str, **settings: Any) -> Game:
        games.append((game, Game(**settings)))
        return games[-1][1]

    fake = SimpleNamespace(make=make, ObservationType=SimpleNamespace(PLAYER_ACTION=ACTION))
    monkeypatch.setitem(sys.modules, "textarena", fake)  # type: ignore[arg-type]
    return games


def test_players_read_what_is_new_and_get_their_own_rewards(made: list[tuple[str, Game]]) -> None:
    params = {"game": "Words-v0", "players": 2, "size": 2, "seed": 5, "settings": {"max_turns": 2}}
    game = build("environments", "textarena", params)
    assert [task["label"] for task in game.tasks()] == [5, 6]
    assert game.reset(AgentTask("0-0", [], 6, {}, 1, "", "")) == "You are 0."
    name, played = made[-1]
    assert (name, played.seed, played.settings) == ("Words-v0-raw", 6, {"max_turns": 2})
    turn = game.step("b")
    assert (turn.observation, turn.done, turn.player) == ("You are 1.\n[Player 0] b\nBoard: b", False, 1)
    turn = game.step("a")
    assert (turn.reward, turn.done, turn.info) == ({0: 1.0, 1: -1.0}, True, {"invalid": 1})
