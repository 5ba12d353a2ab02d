"""Gives single answers of the policy the rewards and weights that an agent's result has for them.

{"turn_rewards": {"chatcmpl-7-2-1": 0.5}, "policy_weights": [1.0, 0.0, 1.0]}
  by the id of a response                   or one value for each answer, in order
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.plugins.generation import Trajectory

TURN_REWARDS, POLICY_WEIGHTS, KL_WEIGHTS = "turn_rewards", "policy_weights", "kl_weights"
_NAMES = (TURN_REWARDS, POLICY_WEIGHTS, KL_WEIGHTS)
_MAX_SHOWN = 8
_LARGEST = 1e30
"""The largest reward of `[[rewards]]`, which holds for those of turns, too."""


class CreditError(ValueError):
    """The agent's result has rewards or weights that do not fit the answers of its execution."""


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """The place of an answer in the samples of an execution."""

    number: int
    """Its number among the answers of the execution, in which the ids of responses end."""
    trajectory: Trajectory
    index: int
    """Its position in `trajectory.turns`."""

    @property
    def num_tokens(self) -> int:
        """Returns the number of tokens that the policy generated."""
        return len(self.trajectory.turns[self.index].tokens)


def give_credit(
    result: Mapping[str, Any], answers: Sequence[AnsweredTurn], execution: str
) -> Mapping[str, Any]:
    """Returns the agent's result without its rewards and weights of answers, which the trajectories get.

    If the result has rewards of answers and no `reward`, that is their sum. `answers` are in order, and
    `execution` is the id in the names of responses. Raises CreditError for a list of another length, an
    unknown id, and a value that is no number or cannot be a weight.
    """
    given = {name: _by_answer(name, result[name], answers, execution) for name in _NAMES if name in result}
    if not given:
        return result
    rest = {name: value for name, value in result.items() if name not in given}
    if TURN_REWARDS in given:
        rewards = {number: _reward(value, number) for number, value in given[TURN_REWARDS].items()}
        for answer in answers:
            earlier = answer.trajectory.turn_rewards or ()
            answer.trajectory.turn_rewards = [*earlier, rewards.get(answer.number, 0.0)]
        rest.setdefault("reward", math.fsum(rewards.values()))
    for answer in answers:
        policy, kl = (
            _weights(name, given.get(name, {}).get(answer.number, 1.0), answer)
            for name in (POLICY_WEIGHTS, KL_WEIGHTS)
        )
        answer.trajectory.weigh(answer.index, policy, kl)
    return rest


def _by_answer(name: str, values: Any, answers: Sequence[AnsweredTurn], execution: str) -> dict[int, Any]:
    """Returns the values of a list or table by the numbers of the answers."""
    numbers = [answer.number for answer in answers]
    if isinstance(values, list | tuple):
        if len(values) != len(numbers):
            raise CreditError(
                f"the agent's {name} is a list of length {len(values)}, and the policy gave {len(numbers)} "
                "answers: give one value for each, in order, or a table by the ids of responses"
            )
        return dict(zip(numbers, values, strict=True))
    if not isinstance(values, Mapping):
        raise CreditError(
            f"the agent's {name} is {values!r}: give a list with one value for each answer of the policy, or "
            "a table by the ids of responses"
        )
    named = {_number(name, str(key), numbers, execution): value for key, value in values.items()}
    if len(named) < len(values):
        raise CreditError(f"the agent's {name} names an answer twice: use one id for each answer")
    return named


def _number(name: str, response: str, numbers: Sequence[int], execution: str) -> int:
    """Returns the number of the answer that has this id, in any of the endpoint's formats."""
    match = re.fullmatch(rf"(?:[a-z]+[-_])?{re.escape(execution)}-(\d+)", response, re.ASCII)
    known = {str(number): number for number in numbers}
    if match is None or match[1] not in known:
        shown = ", ".join(f"…{execution}-{number}" for number in numbers[:_MAX_SHOWN])
        more = f" and {len(numbers) - _MAX_SHOWN} more" if len(numbers) > _MAX_SHOWN else ""
        raise CreditError(
            f"the agent's {name} names {response!r}, and this execution has no such response; its ids end in "
            f"{shown}{more}: use the id of a response as the policy's endpoint sent it"
        )
    return known[match[1]]


def _reward(value: Any, number: int) -> float:
    if not _is_finite(value):
        raise CreditError(
            f"the agent's {TURN_REWARDS} has {value!r} for answer {number}: a reward must be a number of "
            f"at most {_LARGEST:g} in magnitude"
        )
    return float(value)


def _weights(name: str, value: Any, answer: AnsweredTurn) -> float | list[float]:
    weights = value if isinstance(value, list | tuple) else [value]
    if not all(_is_finite(one) and one >= 0 for one in weights):
        raise CreditError(
            f"the agent's {name} has {value!r} for answer {answer.number}: a weight must be a finite number, "
            "at least 0, or a list of them with one for each token"
        )
    if isinstance(value, list | tuple) and len(value) != answer.num_tokens:
        raise CreditError(
            f"the agent's {name} has {len(value)} weights for answer {answer.number}, which has "
            f"{answer.num_tokens} tokens: give one for each token, or one number for all"
        )
    return [float(one) for one in weights] if isinstance(value, list | tuple) else float(value)


def _is_finite(value: Any) -> bool:
    """Returns whether a value is a number that a float can hold."""
    return isinstance(value, int | float) and abs(value) <= _LARGEST
