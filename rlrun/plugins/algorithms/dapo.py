"""DAPO: GRPO with a wider upper clip (https://arxiv.org/abs/2503.14476).

The other parts of DAPO are keys of the spec: `trainer.reduction = "per_token"`, the filter `nonzero_std`
(dynamic sampling) and the reward `length` (soft overlong punishment).
"""

from pydantic import Field

from rlrun.plugins.algorithms.grpo import GRPO, GRPOParams
from rlrun.plugins.algorithms.objective import SymmetricClip


class DAPOParams(SymmetricClip, GRPOParams):
    """GRPO's parameters with the published clip range."""

    clip_high: float | None = Field(default=0.28, gt=0)
    """Upper bound of the ratio is 1 + clip_high. Where only `clip` is set, it bounds both sides."""


class DAPO(GRPO):
    """Uses GRPO's advantages and loss with DAPO's clip range."""

    Params = DAPOParams
    advantage_formula = "as `grpo`"
    loss_formula = 'as `grpo`; set `trainer.reduction = "per_token"`'
