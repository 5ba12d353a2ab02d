"""The messages between the driver and its reward processes, and the order in which samples are scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.plugins.failures import Failure
from rlrun.plugins.types import Sample


@dataclass(frozen=True, slots=True)
class RewardSetup:
    """The settings of one reward."""

    name: str
    """Unique in the spec; used in metrics and messages."""
    type: str
    params: Mapping[str, Any]
    key: str | None
    type_key: str | None = None
    """Metadata key under which a row may name the reward that scores it instead."""
    usual_key: str | None = None
    """The key of the score in a returned table, where `key` is None; None: a table is an error."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a process."""

    rewards: tuple[RewardSetup, ...]
    parent: int
    """Process id of the driver."""
    memory: float | None
    """GiB of address space that the process may use; None: no limit."""
    timeout: float
    """Seconds per sample of an asynchronous reward; the driver watches the time of the others."""
    concurrency: int
    """How many calls of asynchronous rewards are in flight at once."""


@dataclass(frozen=True, slots=True)
class Task:
    """A sample and the indices of the rewards that have yet to score it."""

    sample: Sample
    rewards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one reward on one sample of a batch."""

    task: int
    """Index in the batch."""
    reward_index: int
    """Index in the spec's rewards."""
    value: float | None
    """The score; None if the reward failed, for the reason in `problem`."""
    problem: str = ""
    failure: Failure = Failure.ERROR
    """The type of the problem, if there is one."""
    fatal: bool = False
    """The spec is wrong, so every sample would fail in the same way."""
    detail: Mapping[str, Any] | None = None
    """The table that the reward returned; None if it returned a number."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Outcome":
        """Returns the outcome that a line of JSON holds."""
        return cls(
            answer["task"],
            answer["reward_index"],
            answer.get("value"),
            answer.get("problem", ""),
            Failure(answer.get("failure", Failure.ERROR)),
            answer.get("fatal", False),
            answer.get("detail"),
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """How a reward is called."""

    is_async: bool
    """The reward is asynchronous: many of its calls are in flight at once."""
    is_grouped: bool
    """One call scores all samples of a prompt."""
    late_score: float | None = None
    """The score of a sample that takes too long or too much memory to grade; None: that is an error."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a reward, with one task or with all tasks of a prompt, as indices of the batch."""

    reward_index: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The calls of a batch."""

    sequential: Sequence[Call]
    """Calls made one after another, so that the driver knows which one hangs."""
    concurrent: Sequence[Call]
    """Calls made concurrently after those, and answered in any order."""


def schedule(tasks: Sequence[Task], shapes: Sequence[Shape]) -> Schedule:
    """Returns the calls for a batch: sample by sample, then those that score whole groups."""
    single = [
        Call(reward, (index,))
        for index, task in enumerate(tasks)
        for reward in task.rewards
        if not shapes[reward].is_grouped
    ]
    groups: dict[tuple[int, int, str], list[int]] = {}
    for index, task in enumerate(tasks):
        for reward in task.rewards:
            if shapes[reward].is_grouped:
                groups.setdefault((reward, *group_key(task.sample)), []).append(index)
    calls = [*single, *(Call(reward, tuple(members)) for (reward, _, _), members in groups.items())]
    return Schedule(
        [call for call in calls if not shapes[call.reward_index].is_async],
        [call for call in calls if shapes[call.reward_index].is_async],
    )


def group_key(sample: Sample) -> tuple[int, str]:
    """Returns a key that the samples of one prompt share."""
    return sample.prompt.index, sample.prompt.row.id
