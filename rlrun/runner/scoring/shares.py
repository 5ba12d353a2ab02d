"""How samples are parted among reward processes, and what of a part is left when its process dies."""

from collections.abc import Sequence

from rlrun.plugins.types import Sample
from rlrun.runner.scoring.protocol import Task, group_key


def whole_groups(samples: Sequence[Sample], size: int) -> list[Sequence[Sample]]:
    """Parts of at least `size` samples (the last may have fewer), none of which divides a group."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(group_key(sample), []).append(sample)
    parts: list[list[Sample]] = []
    for members in groups.values():
        if parts and len(parts[-1]) < size:
            parts[-1] += members
        else:
            parts.append(list(members))
    return list(parts)


def left_over(
    tasks: Sequence[Task], pairs: set[tuple[int, int]], grouped: Sequence[bool]
) -> list[list[Task]]:
    """Batches of what a process that died left undone.

    `grouped` says of each reward whether its calls take whole groups, where nobody knows which call the
    process died of: then every call gets a batch of its own. Empty: one batch.
    """
    left: dict[object, list[Task]] = {}
    for at, task in enumerate(tasks):
        rewards = tuple(reward for reward in task.rewards if (at, reward) in pairs)
        if not grouped and rewards:
            left.setdefault(None, []).append(Task(task.sample, rewards))
        for reward in rewards if grouped else ():
            call = (reward, *group_key(task.sample)) if grouped[reward] else (reward, at)
            left.setdefault(call, []).append(Task(task.sample, (reward,)))
    return list(left.values())
