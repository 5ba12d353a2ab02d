"""Early stop: the rewards of a prompt's first samples decide whether the others are generated.

prompt ──▶ m samples, scored ──▶ rewards that differ ──▶ the other n - m samples ──▶ filters
                             └─▶ all equal ──▶ dropped, as `probe/equal_rewards`
"""

from dataclasses import replace

import numpy as np

from rlrun.plugins.filters.nonzero_std import MIN_STD
from rlrun.plugins.types import Group, Prompt
from rlrun.runner.rollouts.filtering import FilterResult, Reason

STOPPED: Reason = ("probe", "equal_rewards")


def split(prompt: Prompt, samples: int, probe: int | None) -> tuple[Prompt, Prompt | None]:
    """Returns the prompt for its first `probe` samples, and for the others of its `samples`.

    Without a probe, or where it has no more samples than that, the second is None: they run all at once.
    """
    if probe is None or samples <= probe:
        return prompt, None
    return replace(prompt, samples=probe), replace(prompt, samples=samples - probe)


def has_equal_rewards(group: Group) -> bool:
    """Returns whether all samples have a reward, and it is the same one, as the filter nonzero_std has it."""
    rewards = [sample.reward for sample in group.samples if sample.is_scored]
    return len(rewards) == len(group.samples) and float(np.std(rewards, ddof=1)) <= MIN_STD


def stopped(group: Group) -> FilterResult:
    """Returns the group as dropped, and notes the reason on its samples."""
    for sample in group.samples:
        sample.verdicts.append("/".join(STOPPED))
    return FilterResult(group, STOPPED)
