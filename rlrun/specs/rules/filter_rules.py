"""Rules of `[[filters]]`: a filter has the rewards it reads, has an effect, and does not drop every group."""

from collections.abc import Iterator

from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import no_effect
from rlrun.specs.sections.job import Spec

_BY_REWARD = {"nonzero_std", "reward_range", "online_difficulty"}
"""The filters shipped with rlrun that only read rewards."""


def filters_of_single_samples(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A filter that needs rewards to differ within a group would drop every group of one sample.

    Silent where the algorithm compares samples itself: then `samples_per_prompt` is the mistake.
    """
    if spec.rollout.samples_per_prompt > 1 or needs.group_relative or not needs.rollout:
        return
    for path, name in _named(spec):
        if name == "nonzero_std":
            message = "would drop every group: with rollout.samples_per_prompt = 1 rewards cannot differ"
            cure = "remove it, or raise rollout.samples_per_prompt"
            related: tuple[KeyPath, ...] = (("rollout", "samples_per_prompt"),)
            yield Finding(path, message, cure, found=name, related=related)


def filters_without_rewards(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A filter that reads rewards needs at least one.

    Silent where the algorithm needs rewards itself: their absence is reported once.
    """
    if spec.rewards or needs.rewards or not needs.rollout:
        return
    for path, name in _named(spec):
        if name in _BY_REWARD:
            cure = 'remove it, or add a table [[rewards]] with `type = "…"`'
            message = f'"{name}" reads rewards, and the spec has none'
            yield Finding(path, message, cure, found=name)


def already_dropped_samples(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The filter of truncated samples has no effect where they are dropped anyway."""
    for path, name in _named(spec):
        if needs.rollout and name == "truncated" and spec.rollout.truncated == "drop":
            why = 'rollout.truncated = "drop" already drops truncated samples'
            yield no_effect(path, why, "remove one of the two", (("rollout", "truncated"),))


def _named(spec: Spec) -> Iterator[tuple[KeyPath, str]]:
    for number, section in enumerate(spec.filters):
        yield ("filters", number, "type"), section.type
