"""Dr. GRPO: GRPO without the terms that bias it (https://arxiv.org/abs/2503.20783).

Its other half is `trainer.reduction = "dr_grpo"`, which divides losses by a constant instead of the length.
"""

from rlrun.plugins.algorithms.grpo import GRPO, GRPOParams


class DrGRPOParams(GRPOParams):
    """GRPO's parameters, with advantages that are not divided by the group's standard deviation."""

    normalize_std: bool = False
    """Divide advantages by the group's standard deviation."""


class DrGRPO(GRPO):
    """Computes advantages as reward - group mean, and trains with the clipped loss."""

    Params = DrGRPOParams
    advantage_formula = "r − group mean"
    loss_formula = 'as `grpo`; set `trainer.reduction = "dr_grpo"`'
