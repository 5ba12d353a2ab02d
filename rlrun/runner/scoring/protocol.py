"""What the driver and its reward processes say to each other, and in which order samples are scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.plugins.types import Sample


@dataclass(frozen=True, slots=True)
class RewardSetup:
    """One reward to build."""

    name: str
    """Unique in the spec; stands in metrics and messages."""
    type: str
    params: Mapping[str, Any]
    key: str | None
    type_key: str | None = None
    """Metadata key under which a row may name the reward that scores it instead."""
    usual_key: str | None = None
    """The entry of a table that counts where `key` names none; None: that is an error."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process needs before the first sample."""

    rewards: tuple[RewardSetup, ...]
    parent: int
    """Process id of the driver."""
    memory: float | None
    """GiB of address space it may use."""
    timeout: float
    """Seconds a reward that waits has for a sample; the driver itself watches the others."""
    concurrency: int
    """Calls of rewards that wait, in flight at a time."""


@dataclass(frozen=True, slots=True)
class Task:
    """A sample and the rewards, by index, that are still to score it."""

    sample: Sample
    rewards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one reward made of one sample of a batch."""

    task: int
    """Index in the batch."""
    reward: int
    """Index in the spec's rewards."""
    value: float | None
    """None: see `problem`."""
    problem: str = ""
    fatal: bool = False
    """The spec is wrong: every sample would fail in the same way."""
    detail: Mapping[str, Any] | None = None
    """The whole table, where the reward returned one."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Outcome":
        """From the line of JSON that tells of it."""
        return cls(
            answer["task"],
            answer["reward"],
            answer.get("value"),
            answer.get("problem", ""),
            answer.get("fatal", False),
            answer.get("detail"),
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """How a reward is called."""

    waits: bool
    """It is async: many of its calls are in flight at a time."""
    grouped: bool
    """It is given all samples of a prompt together."""
    late_score: float | None = None
    """What a sample scores that takes too long to grade, or too much memory; None: that is an error."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a reward: with one task of the batch, by index, or with all those of one prompt."""

    reward: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """All calls of a batch."""

    in_turn: Sequence[Call]
    """Made one after the other, in this order: who hangs is known."""
    together: Sequence[Call]
    """Made side by side when the others are done; answered in any order."""


def schedule(tasks: Sequence[Task], shapes: Sequence[Shape]) -> Schedule:
    """The calls for a batch, sample by sample, those for whole groups last."""
    single = [
        Call(reward, (at,))
        for at, task in enumerate(tasks)
        for reward in task.rewards
        if not shapes[reward].grouped
    ]
    groups: dict[tuple[int, int, str], list[int]] = {}
    for at, task in enumerate(tasks):
        for reward in task.rewards:
            if shapes[reward].grouped:
                groups.setdefault((reward, *group_key(task.sample)), []).append(at)
    calls = [*single, *(Call(reward, tuple(members)) for (reward, _, _), members in groups.items())]
    return Schedule(
        [call for call in calls if not shapes[call.reward].waits],
        [call for call in calls if shapes[call.reward].waits],
    )


def group_key(sample: Sample) -> tuple[int, str]:
    """Samples of one prompt share it."""
    return sample.prompt.index, sample.prompt.row.id
