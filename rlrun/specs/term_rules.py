"""Rules of the terms of a loss: what they compare is there, and nothing else leaves them without effect."""

from collections.abc import Iterator
from typing import Protocol

from rlrun.specs.job import Spec
from rlrun.specs.old_policy import may_be_stale
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import given, no_effect

OLD: KeyPath = ("trainer", "old_log_probs")


class TermDemands(Protocol):
    """The part of an algorithm's needs that is about its loss."""

    @property
    def rollout(self) -> bool:
        """The policy answers prompts; false for SFT."""

    @property
    def pairs(self) -> bool:
        """Rows carry two responses each."""

    @property
    def old_log_probs(self) -> bool:
        """There is a ratio to the policy that generated."""

    @property
    def trainer_log_probs(self) -> bool:
        """The trainer's own old log-probs are needed beside the engine's."""

    @property
    def critic(self) -> bool:
        """Values of a critic."""


def old_log_probs(spec: Spec, demands: TermDemands) -> Iterator[Finding]:
    """The source of the ratio's denominator, where there is a ratio."""
    if given(spec.trainer, "old_log_probs") and not demands.old_log_probs:
        yield no_effect(OLD, f"{spec.algorithm.type} has no ratio to an older policy", "remove it")
    elif spec.trainer.old_log_probs == "rollout" and demands.trainer_log_probs:
        message = (
            "the algorithm's correction compares the trainer's log-probs with the engine's, and needs both"
        )
        yield Finding(OLD, message, 'write "trainer", or remove algorithm.correction', "trainer", "rollout")


def stale_ratio(spec: Spec) -> Iterator[Finding]:
    """Warns where the ratio is 1 however old the samples are: nothing accounts for their age."""
    corrected = spec.algorithm.params.get("correction") is not None
    if may_be_stale(spec) and spec.trainer.old_log_probs == "trainer" and not corrected:
        message = (
            "with one optimizer step the ratio to the trainer's own log-probs is 1, however old a sample is"
        )
        yield Finding(OLD, message, 'write "rollout", or add algorithm.correction', "rollout", "trainer")


def truncated_sampling(spec: Spec, demands: TermDemands) -> Iterator[Finding]:
    """Samples are drawn from the distribution whose log-probs are trained, or something corrects for it."""
    if not demands.old_log_probs or demands.trainer_log_probs:
        return
    for name, full in (("top_p", 1.0), ("top_k", -1)):
        value = getattr(spec.rollout, name)
        if value not in (full, 0):  # 0 has a rule of its own
            message = (
                f"samples would be drawn from a part of the vocabulary, while {spec.algorithm.type} trains "
                "log-probs over the whole of it"
            )
            cure = f"{full:g} turns it off; or add algorithm.correction"
            yield Finding(("rollout", name), message, cure, f"{full:g}", value)


def bootstrapping(spec: Spec, demands: TermDemands) -> Iterator[Finding]:
    """Truncated samples are trained where something is made of their last values."""
    told, kept = spec.algorithm.params.get("bootstrap_truncated"), spec.rollout.truncated
    if demands.critic and told is True and kept != "train":
        path: KeyPath = ("algorithm", "bootstrap_truncated")
        why = f'with rollout.truncated = "{kept}" no truncated sample is trained'
        yield no_effect(path, why, "remove it, or rollout.truncated", (("rollout", "truncated"),))


def pairs(spec: Spec, demands: TermDemands) -> Iterator[Finding]:
    """A pair's loss is one number, spread over its tokens: only their mean gives it back."""
    path = ("trainer", "reduction")
    if demands.pairs and spec.trainer.reduction != "per_sample_mean":
        message = f"{spec.algorithm.type} counts pairs, not tokens"
        cure = 'write "per_sample_mean", or leave it out'
        yield Finding(path, message, cure, "per_sample_mean", spec.trainer.reduction)
