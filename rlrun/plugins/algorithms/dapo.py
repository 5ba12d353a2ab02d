"""DAPO: GRPO with a wider upper clip (https://arxiv.org/abs/2503.14476).

The rest is in the spec: `trainer.reduction = "per_token"`, the filter `nonzero_std` (dynamic sampling) and
the reward `length` (soft overlong punishment).
"""

from pydantic import Field

from rlrun.plugins.algorithms.grpo import GRPO, GRPOParams
from rlrun.plugins.algorithms.objective import SymmetricClip


class DAPOParams(SymmetricClip, GRPOParams):
    """GRPO's parameters with the published clip range."""

    clip_high: float | None = Field(default=0.28, gt=0)
    """The ratio counts no higher than 1 + clip_high. Where `clip` is given and this is not: as `clip`."""


class DAPO(GRPO):
    """GRPO's advantages and loss."""

    Params = DAPOParams
