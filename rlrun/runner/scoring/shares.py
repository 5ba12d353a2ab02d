"""Splits samples among reward processes, and finds what a process that died left undone."""

from collections.abc import Sequence

from rlrun.plugins.types import Sample
from rlrun.runner.scoring.protocol import Task, group_key


def whole_groups(samples: Sequence[Sample], size: int) -> list[Sequence[Sample]]:
    """Returns chunks of at least `size` samples (the last may have fewer) that never split a group."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(group_key(sample), []).append(sample)
    chunks: list[list[Sample]] = []
    for members in groups.values():
        if chunks and len(chunks[-1]) < size:
            chunks[-1] += members
        else:
            chunks.append(list(members))
    return list(chunks)


def unfinished_batches(
    tasks: Sequence[Task], pairs: set[tuple[int, int]], grouped: Sequence[bool]
) -> list[list[Task]]:
    """Returns the batches that finish the work of a process that died.

    `pairs` are the unfinished (task, reward) pairs, as indices. Where it is not known which call ended the
    process, `grouped` holds for each reward whether one call scores a whole group, and every call gets a
    batch of its own. If `grouped` is empty, the rest is one batch.
    """
    batches: dict[object, list[Task]] = {}
    for index, task in enumerate(tasks):
        rewards = tuple(reward for reward in task.rewards if (index, reward) in pairs)
        if not grouped and rewards:
            batches.setdefault(None, []).append(Task(task.sample, rewards))
        for reward in rewards if grouped else ():
            call = (reward, *group_key(task.sample)) if grouped[reward] else (reward, index)
            batches.setdefault(call, []).append(Task(task.sample, (reward,)))
    return list(batches.values())
