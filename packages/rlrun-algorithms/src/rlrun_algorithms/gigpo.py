"""GiGPO: group-in-group policy optimisation for agents (https://arxiv.org/abs/2505.10978).

A sample's turns are its runs of generated tokens. The state in which a turn was made, the paper's anchor
state, is the observation before it: the tokens since the turn before, or the prompt.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rlrun.plugins.algorithms.advantages import (
    centre_rewards,
    comparable_rewards,
    discounted_sums,
    is_compared,
    rewarded_turns,
    spread_over_tokens,
)
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.objective import ClipParams
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, Sample

Scores = NDArray[np.float64]


class GiGPOParams(ClipParams):
    """The clipped loss's parameters, and how turns are compared."""

    normalize_std: bool = True
    """Divide both advantages by the standard deviation of the values that are compared."""
    step_weight: float = Field(default=1.0, ge=0)
    """Weight of the turns' advantages beside those of the samples. The paper calls it omega."""
    gamma: float = Field(default=0.95, gt=0, le=1)
    """Discount for each turn between a turn and a reward."""


class Turn(NamedTuple):
    """One turn of a sample."""

    sample: int
    """The sample's place in its group."""
    tokens: slice
    """The turn's tokens in the response."""
    value: float
    """The discounted sum of the rewards from this turn on."""


class GiGPO(ClippedGroup):
    """Compares samples with their group as GRPO does, and each turn with the group's turns that were made in
    the same state.
    """

    Params = GiGPOParams
    params: GiGPOParams
    advantage_formula = "as `grpo`, plus `step_weight` times the same for the turns after equal observations"

    def scores_of(self, group: Group) -> Scores:
        """Returns (reward - group mean) / group std."""
        rewards, executions = comparable_rewards(group)
        return centre_rewards(rewards, self.params.normalize_std, executions)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns the sample's advantage plus that of the turn on each token of a turn."""
        arrays: list[Scores] = []
        for group in groups:
            pairs = zip(spread_over_tokens(group, self.scores_of(group)), self.of_turns(group), strict=True)
            arrays += [own + self.params.step_weight * of_turns for own, of_turns in pairs]
        return shape_advantages(self.params, groups, arrays)

    def of_turns(self, group: Group) -> list[Scores]:
        """Returns (value - mean) / std over the group's turns in the same state; 0 for a state with one turn,
        and between turns.
        """
        turns: dict[bytes, list[Turn]] = defaultdict(list)
        for number, sample in enumerate(group.samples):
            if is_compared(sample):
                for state, turn in turns_of(number, sample, self.params.gamma):
                    turns[state].append(turn)
        arrays = [np.zeros(len(sample.tokens)) for sample in group.samples]
        for same in turns.values():
            values = np.array([turn.value for turn in same])
            for turn, score in zip(same, centre_rewards(values, self.params.normalize_std), strict=True):
                arrays[turn.sample][turn.tokens] = score
        return arrays


def turns_of(number: int, sample: Sample, gamma: float) -> Iterator[tuple[bytes, Turn]]:
    """Yields each turn of the sample after the observation before it; `number` is the sample's place."""
    edges = np.flatnonzero(np.diff(sample.made, prepend=False, append=False))
    spans = [slice(int(start), int(end)) for start, end in edges.reshape(-1, 2)]
    values = discounted_sums(rewards_of_spans(sample, spans), gamma)
    start, state = 0, sample.prompt.tokens.tobytes()
    for span, value in zip(spans, values, strict=True):
        yield state + sample.tokens[start : span.start].tobytes(), Turn(number, span, float(value))
        start, state = span.stop, b""


def rewards_of_spans(sample: Sample, spans: Sequence[slice]) -> Scores:
    """Returns `[len(spans)]` the reward of each turn, whose sum is the sample's reward.

    Without rewards of turns, all of it belongs to the last one.
    """
    rewards = np.zeros(len(spans))
    if spans:
        ends, values = rewarded_turns(sample)
        places = np.searchsorted([span.stop for span in spans], ends)
        np.add.at(rewards, np.minimum(places, len(spans) - 1), values)
    return rewards
