"""Rules of the terms of a loss: log-probs that a ratio compares, and replayed routing."""

from collections.abc import Iterator

from rlrun.specs.derived.batch_equation import BATCH_KEYS, batch_numbers
from rlrun.specs.derived.old_policy import may_be_stale, old_log_probs_of
from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import no_effect
from rlrun.specs.sections.job import Spec

OLD: KeyPath = ("trainer", "old_log_probs")


def replayed_routing(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The routing of an earlier pass differs only after an optimizer step."""
    if spec.trainer.moe.routing_replay == "trainer" and _has_one_optimizer_step(spec, needs):
        path: KeyPath = ("trainer", "moe", "routing_replay")
        why = "with one optimizer step per rollout step the policy that is trained routes the same way"
        yield no_effect(path, why, "remove it, or raise trainer.optimizer_steps", BATCH_KEYS)


def log_ratio_penalty(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The log of a ratio that is 1 has nothing to penalise."""
    path: KeyPath = ("algorithm", "log_ratio_coef")
    unset = not spec.algorithm.params.get("log_ratio_coef")
    if unset or old_log_probs_of(spec, needs) != "trainer" or not _has_one_optimizer_step(spec, needs):
        return
    why = "with one optimizer step the ratio to the trainer's log-probs is always 1"
    cure = 'remove it, set trainer.old_log_probs = "rollout", or raise trainer.optimizer_steps'
    yield no_effect(path, why, cure, (*BATCH_KEYS, OLD))


def interpolated_log_probs(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Old log-probs are interpolated where samples may be stale and the exact ones would cost a pass."""
    if spec.trainer.given("old_log_probs") != "interpolated":
        return
    if not may_be_stale(spec):
        message = (
            "samples are generated with the weights that are trained on them: nothing is between the two"
        )
        yield Finding(OLD, message, 'remove it, or set "rollout"', "rollout", "interpolated")
    elif _has_one_optimizer_step(spec, needs):
        message = "with one optimizer step the trainer's own log-probs are exact and cost no pass"
        cure = 'set "trainer" with algorithm.correction, or raise trainer.optimizer_steps'
        yield Finding(OLD, message, cure, "trainer", "interpolated", related=BATCH_KEYS)
    elif needs.policy_statistics or (needs.trainer_log_probs and needs.policy_log_probs):
        what = "entropies or probabilities" if needs.policy_statistics else "log-probs"
        message = f"{spec.algorithm.type} needs the trainer's {what} before the update, which take a pass"
        yield Finding(OLD, message, 'set "trainer"', "trainer", "interpolated")


def _has_one_optimizer_step(spec: Spec, needs: Needs) -> bool:
    """Returns whether a step has one optimizer step; False where another rule reports the batch equation."""
    try:
        return batch_numbers(spec, needs.rollout).optimizer_steps == 1
    except ValueError:
        return False


def stale_ratio(spec: Spec) -> Iterator[Finding]:
    """Warns where stale samples are trained with a ratio of 1, so that nothing corrects for their age."""
    corrected = spec.algorithm.params.get("correction") is not None
    if may_be_stale(spec) and spec.trainer.given("old_log_probs") == "trainer" and not corrected:
        message = (
            "with one optimizer step the ratio to the trainer's log-probs is always 1: stale samples are not "
            "corrected"
        )
        yield Finding(OLD, message, 'set "rollout", or add algorithm.correction', "rollout", "trainer")
