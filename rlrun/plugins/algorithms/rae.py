"""RAE: role-conditioned advantage estimation, for self-play (SPIRAL, https://arxiv.org/abs/2506.24119).

The baseline of a role in a game is the moving average of the rewards that the role earned in it:

    A = r - b[game, role],    then    b[game, role] = decay · b[game, role] + (1 - decay) · r

An execution of several players has a sample for each. Where a game favours one of them, neither gains by it,
because each is compared with its own earlier rewards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rlrun.plugins.algorithms.adaptive_entropy import FollowsEntropy
from rlrun.plugins.algorithms.advantages import is_compared, spread_over_tokens
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np

BASELINES = "baselines"
"""The name of the baselines in the saved state."""


class RAEParams(ClipParams):
    """The parameters of the clipped loss, and how a sample names its game and its role."""

    decay: float = Field(default=0.95, ge=0, lt=1)
    """Share of a baseline that remains after another reward of its game and role; alpha in the paper."""
    role_key: str = "player"
    """Key of a sample's `info` with its role. The rollout `environment` notes the player of a game with
    several players. Samples without the key share a role."""
    game_key: str = "source"
    """Key of a row's metadata with its game. `mixture` notes the number of a row's source. Rows without the
    key share a game."""


class RAE(FollowsEntropy):
    """Compares a sample with earlier ones of the same game and role, so that a prompt needs one execution.

    It remembers the baselines, which are part of every checkpoint.
    """

    Params = RAEParams
    params: RAEParams
    api_version = 1
    advantage_formula = "r − moving average of the rewards of this game and role"
    loss_formula = "as `grpo`"

    def __init__(self, params: RAEParams) -> None:
        self.params = params
        self.needs: Needs = replace(needs_of(params, group_relative=False), state=True)
        self._baselines: dict[str, float] = {}
        self._before: dict[str, float] = {}
        """The baselines before the step."""

    def observe(self, groups: Sequence[Group]) -> None:
        """Begins a step, whose rewards move the baselines in the order of its executions."""
        if self.params.adaptive_entropy is not None:
            super().observe(groups)
        self._before, self._baselines = self._baselines, dict(self._baselines)
        for group in groups:
            self._scores(group, self._baselines)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns reward - baseline on each token of a sample. The baseline is from before the sample's own
        execution.
        """
        baselines = dict(self._before)
        spread = [
            array for group in groups for array in spread_over_tokens(group, self._scores(group, baselines))
        ]
        return shape_advantages(self.params, groups, spread)

    def _scores(self, group: Group, baselines: dict[str, float]) -> NDArray[np.float64]:
        """Returns reward - baseline of the samples that are compared, and moves the baselines.

        The samples that an execution has of a role move its baseline once, by the last one's reward.
        """
        samples = [sample for sample in group.samples if is_compared(sample)]
        keys = [(sample.execution, self._key(group, sample)) for sample in samples]
        last = {key: sample.reward for key, sample in zip(keys, samples, strict=True)}
        before = {}
        for (execution, name), reward in last.items():
            before[execution, name] = baseline = baselines.get(name, 0.0)
            baselines[name] = self.params.decay * baseline + (1 - self.params.decay) * reward
        return np.array([sample.reward - before[key] for key, sample in zip(keys, samples, strict=True)])

    def _key(self, group: Group, sample: Sample) -> str:
        """Returns the name of a sample's game and role, as a key of JSON."""
        game = group.prompt.row.metadata.get(self.params.game_key)
        return json.dumps([game, sample.info.get(self.params.role_key)], default=str)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)

    def step_values(self) -> Mapping[str, float]:
        """Returns the mean baseline, and the weight of the entropy bonus where it is adaptive."""
        entropy = super().step_values() if self.params.adaptive_entropy is not None else {}
        baselines = list(self._before.values())
        return {**entropy, "role_baseline": sum(baselines) / max(len(baselines), 1)}

    def state(self) -> Mapping[str, Any]:
        """Returns the baselines after the step."""
        entropy = super().state() if self.params.adaptive_entropy is not None else {}
        return {**entropy, BASELINES: self._baselines}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues with saved baselines."""
        if self.params.adaptive_entropy is not None:
            super().restore(state)
        self._baselines = {name: float(value) for name, value in state[BASELINES].items()}
        self._before = self._baselines
