"""Chooses the old log-probs, the denominator of a policy-gradient loss's ratio; for rules, plan and job.

With one optimizer step per rollout step, the trainer's own log-probs are those of the policy being trained.
The ratio to them is 1, even for samples that were generated with much older weights.
"""

from typing import Literal

from rlrun.specs.sections.job import Spec


def may_be_stale(spec: Spec) -> bool:
    """Returns whether samples may have been generated with older weights than the trainer's."""
    return spec.rollout.mode == "async" or spec.rollout.partial


def old_log_probs_of(spec: Spec, *, corrected: bool) -> Literal["trainer", "rollout"]:
    """Returns which log-probs are the old ones, the trainer's or those of the rollout.

    `corrected`: whether the algorithm corrects for the difference between trainer and engine.
    """
    if spec.trainer.old_log_probs is not None:
        return spec.trainer.old_log_probs
    return "rollout" if may_be_stale(spec) and not corrected else "trainer"
