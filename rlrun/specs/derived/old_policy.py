"""Chooses the old log-probs, the denominator of a policy-gradient loss's ratio.

With one optimizer step per rollout step, the trainer's own log-probs are those of the policy being trained.
The ratio to them is 1, even for samples that were generated with much older weights.
"""

from typing import Literal

from rlrun.specs.needs import Needs
from rlrun.specs.sections.job import Spec

OldLogProbs = Literal["trainer", "rollout", "interpolated"]


def may_be_stale(spec: Spec) -> bool:
    """Returns whether samples may have been generated with older weights than the trainer's."""
    rollout = spec.rollout
    return rollout.mode == "async" or rollout.partial or rollout.weight_update_interval > 1


def choose_old_log_probs(spec: Spec, needs: Needs) -> tuple[OldLogProbs, str]:
    """Returns whose log-probs are the old ones where the spec does not say so, and why."""
    if needs.trainer_log_probs:
        if may_be_stale(spec):
            return (
                "trainer",
                "the algorithm compares them with the engine's, which corrects for stale samples",
            )
        return "trainer", "the algorithm compares them with the engine's"
    if needs.engine_ratio:
        return "rollout", "the algorithm's ratio is to the engine's probabilities"
    if may_be_stale(spec):
        why = "samples may come from older weights, which the ratio to the engine's log-probs weighs"
        return "rollout", why
    return "trainer", "samples are generated with the weights that are trained on them"


def old_log_probs_of(spec: Spec, needs: Needs) -> OldLogProbs:
    """Returns whose log-probs are the old ones, for a spec that may leave it open."""
    given: OldLogProbs | None = spec.trainer.given("old_log_probs")
    return given or choose_old_log_probs(spec, needs)[0]
