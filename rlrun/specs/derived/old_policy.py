"""Whose log-probs the ratio of a policy-gradient loss is taken to; pure, for the rules, the plan and the job.

With one optimizer step for each rollout the trainer's own log-probs are those of the policy that is trained:
the ratio to them is 1, also for samples that much older weights made.
"""

from typing import Literal

from rlrun.specs.sections.job import Spec


def may_be_stale(spec: Spec) -> bool:
    """Returns whether samples may be of older weights than those that are trained."""
    return spec.rollout.mode == "async" or spec.rollout.partial


def old_log_probs_of(spec: Spec, *, corrected: bool) -> Literal["trainer", "rollout"]:
    """Returns whose log-probs are the old ones. `corrected`: the algorithm weighs trainer against engine."""
    if spec.trainer.old_log_probs is not None:
        return spec.trainer.old_log_probs
    return "rollout" if may_be_stale(spec) and not corrected else "trainer"
