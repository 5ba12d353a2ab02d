"""Dr. GRPO: GRPO without the terms that bias it (https://arxiv.org/abs/2503.20783).

Its other half is `trainer.reduction = "dr_grpo"`: losses are divided by a constant, not by the length.
"""

from rlrun.plugins.algorithms.grpo import GRPO, GRPOParams


class DrGRPOParams(GRPOParams):
    """GRPO's parameters; advantages are not divided by the group's standard deviation."""

    normalize_std: bool = False
    """Divide advantages by the group's standard deviation."""


class DrGRPO(GRPO):
    """reward - group mean, clipped loss."""

    Params = DrGRPOParams
