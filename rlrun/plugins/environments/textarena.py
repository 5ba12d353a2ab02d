"""Games of TextArena (https://github.com/LeonGuertler/TextArena), for one player or in self-play."""

from typing import Any

from pydantic import Field

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.environments.turn import Turn
from rlrun.specs.sections.section import Section

_RAW = "-raw"
"""The end of the id of a game that only says what is new. Earlier turns are in the conversation anyway."""


class TextArenaParams(Section):
    """The game, and how many games there are."""

    game: str = Field(min_length=1)
    """Id of the game, such as `GuessTheNumber-v0`, `FrozenLake-v0` or `TicTacToe-v0`."""
    players: int = Field(default=1, ge=1)
    """Number of players. The policy plays all of them."""
    size: int = Field(default=1000, ge=1)
    """Number of tasks. Each is a game from its own seed: all samples of a prompt play the same game."""
    seed: int = Field(default=0, ge=0)
    """Seed of the first task; each further one has the next seed."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The game's own settings, such as `{ max_turns = 8 }`."""


class TextArena:
    """A player's reward is the game's own at its end. `invalid` counts players whose move was invalid."""

    Params = TextArenaParams
    api_version = 1
    example = {"game": "GuessTheNumber-v0", "size": 2}  # noqa: RUF012

    def __init__(self, params: TextArenaParams) -> None:
        """Raises ValueError for an unknown game. Needs the package textarena."""
        import textarena

        self.params = params
        self._game_of = textarena.make
        self._action = textarena.ObservationType.PLAYER_ACTION
        self._game = self._new_game()

    def tasks(self) -> list[dict[str, Any]]:
        """Returns a task for each seed. Its first messages are the game's own."""
        seeds = range(self.params.seed, self.params.seed + self.params.size)
        return [{"id": str(seed), "prompt": self.params.game, "label": seed} for seed in seeds]

    def reset(self, task: AgentTask) -> str:
        """Begins the game of the task's seed, and returns what the first player reads."""
        self._game = self._new_game()
        self._game.reset(num_players=self.params.players, seed=int(task.label))
        player, text = self._observation()
        if player != 0:
            raise ValueError(
                f"{self.params.game} begins with player {player}; only games that begin with 0 work"
            )
        return text

    def step(self, action: str) -> Turn:
        """Makes a move, and returns what the next player reads; at the end, the rewards of all players."""
        done, _ = self._game.step(action=action)
        if not done:
            player, text = self._observation()
            return Turn(text, {}, False, {}, player)
        rewards, info = self._game.close()
        invalid = sum(bool(one.get("invalid_move")) for one in info.values())
        return Turn(None, rewards, True, {"invalid": invalid})

    def _new_game(self) -> Any:
        game = self.params.game.removesuffix(_RAW) + _RAW
        return self._game_of(game, **self.params.settings)

    def _observation(self) -> tuple[int, str]:
        """Returns who acts next, and what is new to this player, without the player's own last move."""
        player, observations = self._game.get_observation()
        lines = []
        for sender, text, kind in observations:
            if kind != self._action:
                lines.append(text)
            elif sender != player:
                lines.append(f"[Player {sender}] {text}")
        return player, "\n".join(lines)
