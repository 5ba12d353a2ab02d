"""Whether engines record what each token was drawn from; pure, for the rules, the plan and the job.

Where top-p or top-k cut the vocabulary, samples come from a renormalised part of the policy's distribution.
The ratio of a policy-gradient loss is exact where the trainer renormalises over the same part: "Keep Sampling
Mask" of DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556, section 3.1).
"""

from typing import Protocol

from rlrun.specs.sections.job import Spec

USUAL_CANDIDATES = 256


class MaskDemands(Protocol):
    """The part of an algorithm's needs that sampling masks depend on."""

    @property
    def old_log_probs(self) -> bool:
        """There is a ratio to the policy that generated."""

    @property
    def trainer_log_probs(self) -> bool:
        """A correction weighs the trainer's log-probs against the engine's."""


def cuts_vocabulary(spec: Spec) -> bool:
    """Returns whether samples are drawn from a part of the vocabulary."""
    return spec.rollout.top_p < 1 or spec.rollout.top_k > 0


def records_mask(spec: Spec, demands: MaskDemands) -> bool:
    """Returns whether engines record sampling masks and the trainer takes its log-probs over them."""
    if not cuts_vocabulary(spec):
        return False
    if spec.rollout.sampling_mask is not None:
        return spec.rollout.sampling_mask
    return demands.old_log_probs and not demands.trainer_log_probs


def candidates_of(spec: Spec, demands: MaskDemands) -> int:
    """Returns how many tokens of a sampling mask to count memory for; 0 without masks.

    That is top_k, which bounds a mask. top_p alone does not: it seldom leaves more than `USUAL_CANDIDATES`.
    """
    if not records_mask(spec, demands):
        return 0
    return spec.rollout.top_k if spec.rollout.top_k > 0 else USUAL_CANDIDATES
