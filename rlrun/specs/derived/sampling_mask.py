"""Decides whether engines record which tokens each token was drawn from.

With top-p or top-k, samples are drawn from a part of the vocabulary, over which the policy's distribution is
renormalised. The ratio of a policy-gradient loss is exact if the trainer renormalises over the same part:
"Keep Sampling Mask" of DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556, section 3.1).
"""

from rlrun.specs.needs import Needs
from rlrun.specs.sections.job import Spec

USUAL_CANDIDATES = 256
"""Number of tokens that top-p alone seldom exceeds."""


def cuts_vocabulary(spec: Spec) -> bool:
    """Returns whether samples are drawn from a part of the vocabulary."""
    return spec.rollout.top_p < 1 or spec.rollout.top_k > 0


def choose_mask(spec: Spec, needs: Needs) -> tuple[bool, str]:
    """Returns whether engines record sampling masks where the spec does not say so, and why."""
    if not cuts_vocabulary(spec):
        return False, "tokens are drawn from the whole vocabulary"
    if needs.trainer_log_probs:
        return False, "the algorithm corrects for the difference between trainer and engine"
    if not needs.old_log_probs:
        return False, "the loss has no ratio"
    return True, "tokens are drawn from a part of the vocabulary (top_p, top_k)"


def records_mask(spec: Spec, needs: Needs) -> bool:
    """Returns whether engines record sampling masks, for a spec that may leave it open."""
    given: bool | None = spec.rollout.given("sampling_mask")
    return choose_mask(spec, needs)[0] if given is None else given and cuts_vocabulary(spec)


def candidates_of(spec: Spec) -> int:
    """Returns how many tokens per sampling mask the plan counts memory for; 0 without masks.

    top_k is an upper bound. top_p alone has none, so that `USUAL_CANDIDATES` is assumed.
    """
    if not spec.rollout.sampling_mask:
        return 0
    return spec.rollout.top_k if spec.rollout.top_k > 0 else USUAL_CANDIDATES
