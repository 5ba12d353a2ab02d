"""Rules of the terms of a loss: log-probs that a ratio compares, truncated samples, and pairs."""

from collections.abc import Iterator

from rlrun.specs.derived.batch_equation import BATCH_KEYS, batch_numbers
from rlrun.specs.derived.old_policy import may_be_stale, old_log_probs_of
from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import is_given, no_effect
from rlrun.specs.sections.job import Spec

OLD: KeyPath = ("trainer", "old_log_probs")


def old_log_probs(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The source of old log-probs applies to a loss with a ratio, and provides what the loss reads."""
    if is_given(spec.trainer, "old_log_probs") and not needs.old_log_probs:
        yield no_effect(OLD, f"the loss of {spec.algorithm.type} reads no old log-probs", "remove it")
    elif spec.trainer.given("old_log_probs") == "rollout" and needs.trainer_log_probs:
        message = (
            'must be "trainer" with algorithm.correction, which compares log-probs of the trainer with those '
            "of the engine"
        )
        yield Finding(OLD, message, 'set "trainer", or remove algorithm.correction', "trainer", "rollout")


def replayed_routing(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """An earlier pass of the trainer has to report the routed experts that are replayed."""
    if spec.trainer.moe.routing_replay != "trainer":
        return
    path: KeyPath = ("trainer", "moe", "routing_replay")
    if old_log_probs_of(spec, corrected=needs.trainer_log_probs) == "rollout":
        why = "the trainer runs no pass for old log-probs whose routing could be replayed"
        related = (OLD, ("rollout", "mode"), ("rollout", "partial"))
        yield no_effect(path, why, 'remove it, or set trainer.old_log_probs = "trainer"', related)
    try:
        optimizer_steps = batch_numbers(spec, needs.rollout).optimizer_steps
    except ValueError:
        return  # another rule reports the batch equation
    if optimizer_steps == 1:
        why = "with one optimizer step per rollout step the policy that is trained routes the same way"
        yield no_effect(path, why, "remove it, or raise trainer.optimizer_steps", BATCH_KEYS)


def stale_ratio(spec: Spec) -> Iterator[Finding]:
    """Warns where stale samples are trained with a ratio of 1, so that nothing corrects for their age."""
    corrected = spec.algorithm.params.get("correction") is not None
    old = old_log_probs_of(spec, corrected=corrected)
    if may_be_stale(spec) and old == "trainer" and not corrected:
        message = (
            "with one optimizer step the ratio to the trainer's log-probs is always 1: stale samples are not "
            "corrected"
        )
        yield Finding(OLD, message, 'set "rollout", or add algorithm.correction', "rollout", "trainer")


def bootstrapping(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Bootstrapping truncated samples needs truncated samples that are trained."""
    bootstraps, truncated = spec.algorithm.params.get("bootstrap_truncated"), spec.rollout.truncated
    if needs.critic and bootstraps is True and truncated != "train":
        path: KeyPath = ("algorithm", "bootstrap_truncated")
        why = f'with rollout.truncated = "{truncated}" truncated samples are not trained'
        yield no_effect(path, why, "remove it, or remove rollout.truncated", (("rollout", "truncated"),))


def pairs(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A loss of pairs is reduced per sample.

    The loss of a pair is one number that is repeated for each token: only the mean over tokens restores it.
    """
    path = ("trainer", "reduction")
    if needs.pairs and spec.trainer.reduction != "per_sample_mean":
        message = f'must be "per_sample_mean" for {spec.algorithm.type}, whose loss has one term per pair'
        cure = 'set "per_sample_mean", or remove it'
        yield Finding(path, message, cure, "per_sample_mean", spec.trainer.reduction)
