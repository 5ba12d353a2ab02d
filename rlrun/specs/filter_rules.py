"""Rules of `[[filters]]`: what they judge by is there, and something can come through."""

from collections.abc import Iterator
from typing import Protocol

from rlrun.specs.job import Spec
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import no_effect

_BY_REWARD = {"nonzero_std", "reward_range", "online_difficulty"}
"""Those of ours that look at nothing but rewards."""


class FilterDemands(Protocol):
    """The part of an algorithm's needs that filters share."""

    @property
    def rollout(self) -> bool:
        """The policy answers prompts; false for SFT."""

    @property
    def rewards(self) -> bool:
        """Rewards take part in the advantages."""

    @property
    def group_relative(self) -> bool:
        """Samples of a group are compared."""


def lone_samples(spec: Spec, demands: FilterDemands) -> Iterator[Finding]:
    """Rewards that can differ within a group, also where the algorithm asks for none that do."""
    if spec.rollout.samples_per_prompt > 1 or demands.group_relative or not demands.rollout:
        return
    for path, name in _named(spec):
        if name == "nonzero_std":
            message = "drops every group of one, and there would be no other: rollout.samples_per_prompt = 1"
            others: tuple[KeyPath, ...] = (("rollout", "samples_per_prompt"),)
            yield Finding(path, message, "remove it, or draw more samples", found=name, others=others)


def unrewarded(spec: Spec, demands: FilterDemands) -> Iterator[Finding]:
    """Rewards, for filters that judge by them, also where the algorithm asks for none."""
    if spec.rewards or demands.rewards or not demands.rollout:
        return
    for path, name in _named(spec):
        if name in _BY_REWARD:
            cure = 'remove it, or add a table [[rewards]] with `type = "…"`'
            yield Finding(path, "judges by rewards, and there are none", cure, found=name)


def removed_before(spec: Spec, demands: FilterDemands) -> Iterator[Finding]:
    """Truncated samples that reach the filter of truncated samples."""
    for path, name in _named(spec):
        if demands.rollout and name == "truncated" and spec.rollout.truncated == "drop":
            why = 'rollout.truncated = "drop" has removed truncated samples before'
            yield no_effect(path, why, "remove one of the two", (("rollout", "truncated"),))


def _named(spec: Spec) -> Iterator[tuple[KeyPath, str]]:
    for number, section in enumerate(spec.filters):
        yield ("filters", number, "type"), section.type
