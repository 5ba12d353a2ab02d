"""What an environment answers to an action of the policy, and the checks of it.

Only the standard library is imported, because environments run in interpreters of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """The answer to one action. A plain tuple with the first three or four values will do.

    Example: `Turn("higher", 0.0, False, {"guesses": 1})`
    """

    observation: Any
    """What the player who acts next reads: a text, which becomes a user message, or a list of messages."""
    reward: Any = 0.0
    """The action's reward, a number. With several players also a table of numbers by player. The reward of an
    execution is the sum over its turns."""
    done: bool = False
    """Whether the execution has ended."""
    info: Mapping[str, Any] = {}
    """JSON values to note on the sample. Later values of the same name replace earlier ones."""
    player: int = 0
    """Who acts next, counted from 0. The policy plays every player, in a conversation of its own for each."""


def checked_turn(answer: Any) -> dict[str, Any]:
    """Returns a turn as JSON values: `messages`, `rewards` by player, `done`, `info`, `player`.

    A number as the reward is that of the player who acted, under the name "". Raises ValueError for an answer
    that is not a turn.
    """
    if not (isinstance(answer, tuple) and 3 <= len(answer) <= len(Turn._fields)):
        raise ValueError(f"step returned {_shown(answer)}, not (observation, reward, done, info)")
    turn = Turn(*answer)
    rewards = turn.reward if isinstance(turn.reward, Mapping) else {"": turn.reward}
    return {
        "messages": [] if turn.done and turn.observation is None else checked_messages(turn.observation),
        "rewards": {str(player): _number(reward) for player, reward in rewards.items()},
        "done": bool(turn.done),
        "info": dict(turn.info),
        "player": int(turn.player),
    }


def checked_messages(observation: Any) -> list[dict[str, Any]]:
    """Returns an observation as messages. Raises ValueError if it is neither a text nor messages."""
    if isinstance(observation, str):
        return [{"role": "user", "content": observation}]
    is_list = isinstance(observation, Sequence) and len(observation) > 0
    if is_list and all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in observation):
        return [dict(message) for message in observation]
    raise ValueError(f"the observation is {_shown(observation)}, neither a text nor a list of messages")


def _number(reward: Any) -> float:
    try:
        number = float(reward)
    except (TypeError, ValueError):
        raise ValueError(f"the reward is {_shown(reward)}, not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"the reward is {number}, not a finite number")
    return number


def _shown(value: Any) -> str:
    return repr(value)[:80]
