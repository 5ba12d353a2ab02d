"""KTO: Kahneman-Tversky optimisation, which learns from single labelled responses
(https://arxiv.org/abs/2402.01306).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.row_checks import is_good
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class KTOParams(Section):
    """The parameters of KTO."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is kept near the reference."""
    good_weight: float = Field(default=1.0, gt=0)
    """Weight of good responses. Raise it where they are rarer than bad ones."""
    bad_weight: float = Field(default=1.0, gt=0)
    """Weight of bad responses."""


class KTO:
    """Trains on rows that contain one response and whether it is good (`data.label_key`).

    A response's reward is its gain over the reference. It is compared with the mean gain of responses that do
    not belong to their prompts: those of the next rows. That mean estimates the policy's divergence from the
    reference. The driver computes it over all rows of a step, so it does not depend on micro-batches.
    """

    Params = KTOParams
    api_version = 1
    needs = Needs(
        rollout=False, rewards=False, labels=True, reference=True, policy_log_probs=True, marks=True
    )
    advantage_formula = "the row’s weight, below 0 for a bad response"
    loss_formula = "|A|·(1 − σ(±β·(Σ(new − reference) − z))), z the mean gain of other rows’ responses"

    def __init__(self, params: KTOParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns the weight of the row on each token of its response; 0 on the other row's response."""
        arrays = []
        for group in groups:
            weight = self.params.good_weight if is_good(group.prompt.row) else -self.params.bad_weight
            for number, sample in enumerate(group.samples):
                arrays.append(np.full(len(sample.tokens), 0.0 if number else weight, np.float32))
        return arrays

    def marks(
        self, groups: Sequence[Group], advantages: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """Returns the divergence from the reference, at least 0, on every token."""
        gains = [_gain(sample) for group in groups for sample in group.samples[1:]]
        divergence = max(float(np.mean(gains)), 0.0) if gains else 0.0
        return [np.full(len(array), divergence, np.float32) for array in advantages]

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns weight · (1 - sigmoid(margin)) of each response, on each of its tokens.

        margin = beta · (gain - divergence), with the other sign for a bad response; log-probs are summed over
        the response.
        """
        assert inputs.reference_log_probs is not None and inputs.marks is not None, "needs"
        gains = inputs.sample_sum((inputs.log_probs - inputs.reference_log_probs) * inputs.mask)
        margin = inputs.advantages.sign() * self.params.beta * (gains[inputs.sample] - inputs.marks)
        loss = inputs.advantages.abs() * (-margin).sigmoid()
        right = (margin > 0).to(loss.dtype)
        metrics = {"kto_loss": loss, "kto_divergence": inputs.marks, "kto_right_frac": right}
        return LossOutputs(loss, {name: values.detach() for name, values in metrics.items()})


def _gain(sample: Sample) -> float:
    """Returns the log of the policy's probability of a response over the reference's."""
    assert sample.policy_log_probs is not None and sample.reference_log_probs is not None, "needs"
    return float((sample.policy_log_probs.astype(np.float64) - sample.reference_log_probs).sum())
