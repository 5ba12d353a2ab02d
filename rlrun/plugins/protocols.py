"""The plugin kinds. A plugin is a class with a pydantic `Params` model, made once with its parameters.

Entry-point groups: `rlrun.algorithms`, `rlrun.data`, `rlrun.rewards`, `rlrun.filters`, `rlrun.rollouts`,
`rlrun.tools`, `rlrun.agents`, `rlrun.buffers`, `rlrun.trackers`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.session import Session, SessionGroup
from rlrun.plugins.types import (
    Buffered,
    Drop,
    Group,
    LossInputs,
    LossOutputs,
    Mask,
    Needs,
    Rewarded,
    Row,
    Sample,
    ValueInputs,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

API_VERSION = 1
"""Raised when a protocol grows or changes; a plugin says which one it was written for."""
OLDEST_API_VERSION = 1
"""Plugins written for this version up to `API_VERSION` work; raised when a change breaks older ones."""


class Plugin(Protocol):
    """What every kind shares."""

    Params: ClassVar[type[BaseModel]]
    """Its parameters: the keys that stand beside `type` in the spec."""
    api_version: ClassVar[int]
    """The `API_VERSION` it was written for.

    A class may also have `example`, parameters to check it with, where they do not all have defaults.
    """

    def __init__(self, params: Any) -> None:
        """Called once in each process that uses it; heavy work belongs here, not at import."""


class Algorithm(Plugin, Protocol):
    """Advantages (on the driver, numpy) and the loss of a token (on the trainer, torch tensors).

    What `needs` names of the policy, the reference, the teacher and the critic is on the samples by the time
    `advantages` is called.
    """

    @property
    def needs(self) -> Needs:
        """What the framework has to provide."""

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """One `[R]` array for each sample, in the order of `groups` and their samples."""

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Token losses of one micro-batch; no reduction, no mask, no collective."""


class ActorCritic(Algorithm, Protocol):
    """An algorithm with `needs.critic`: samples carry the critic's values when advantages are made."""

    def returns(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """What the critic is fitted to: one `[R]` array for each sample, in the order of `advantages`."""

    def value_loss(self, inputs: ValueInputs) -> LossOutputs:
        """The critic's token losses of one micro-batch; no reduction, no mask, no collective."""


class DataSource(Plugin, Protocol):
    """Rows by position; the framework shuffles, tokenises and drops.

    It may have a class method `preview(params, count)` for `rlrun validate`, which yields about `count` rows,
    or the ValueError of a broken one, within a fraction of a second.
    """

    def __len__(self) -> int:
        """Number of rows, broken ones included."""

    def __getitem__(self, index: int) -> Row:
        """Row `index`; the same every time. ValueError for a broken row, naming what is wrong with it."""


class Reward(Plugin, Protocol):
    """Scores samples, in a process of its own.

    `score` may be async: then many samples are in flight at a time (`scoring.concurrency`). A reward that
    needs something of its rows may have a class method `check_row(params, row)`, which raises ValueError for
    a row that it cannot score: `rlrun validate` then reports it, and a job counts the row as broken. One that
    only reads the response may have a number as its attribute `late_score`: a sample gets that score where it
    takes too long to grade (`scoring.timeout`) or too much memory, since the response is the cause.
    """

    def score(self, sample: Sample) -> Rewarded | Awaitable[Rewarded]:
        """The sample's reward; an exception is that sample's error."""


class GroupReward(Plugin, Protocol):
    """A reward that sees all samples of a prompt together, to compare them or to ask for all at once."""

    def score_group(self, samples: Sequence[Sample]) -> Sequence[Rewarded] | Awaitable[Sequence[Rewarded]]:
        """A reward for each sample, in order; an exception is the error of all. May be async."""


class Filter(Plugin, Protocol):
    """Keeps a scored group (None), drops it or some of its samples, or masks some, with a reason.

    Where its attribute `keep_when_short` is true, what it dropped is used after all when a step falls short.
    One that remembers has `state()`, JSON values that go into every checkpoint, and `restore(state)`.
    """

    def __call__(self, group: Group) -> Drop | Mask | None:
        """The verdict on one group."""


Executed = Trajectory | Sequence[Trajectory]
"""What an execution leaves: a training sample, or several that share its id and count once in the loss."""


class Rollout(Plugin, Protocol):
    """Answers prompts by asking the policy, in the driver's event loop: it must not block it.

    It may have `tools`, JSON schemas for the chat template of every prompt, and `async close()`, called once
    at the end.
    """

    async def run(self, session: Session) -> Executed:
        """One execution. An exception, or running past `rollout.request_timeout`, fails it and no other."""


class Tool(Plugin, Protocol):
    """Something that the policy may call in a conversation, in the driver's event loop: it must not block it.

    It may have `async close()`, called once at the end. One that keeps state between the calls of a
    conversation has `begin(session)`, which gives the tool for one execution; that one may have
    `async close()` as well, and `info()`, JSON values to be noted on the sample.
    """

    @property
    def schema(self) -> Mapping[str, Any]:
        """As chat templates take it: `{"type": "function", "function": {name, description, parameters}}`."""

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """What the policy is told. ValueError is the policy's mistake, and it is told so; any other error
        fails the execution. Cancelled when it takes too long.
        """


class Agent(Plugin, Protocol):
    """A program of somebody's own around the policy, in the driver's event loop: it must not block it.

    It may have `async close()`, called once at the end.
    """

    async def run(self, task: AgentTask) -> Mapping[str, Any] | None:
        """One execution, by requests to `task.base_url`; JSON values for rewards and for the record. An
        exception fails the execution. Cancelled when it takes too long.
        """


class GroupRollout(Plugin, Protocol):
    """A rollout that runs all executions of a prompt together."""

    async def run_group(self, group: SessionGroup) -> Sequence[Executed]:
        """What each execution leaves, in the order of `group.sessions`; an exception fails all of them."""


class BufferStrategy(Plugin, Protocol):
    """Chooses among the groups that partial rollouts kept for the next step."""

    def order(self, buffered: Sequence[Buffered], version: int) -> Sequence[int]:
        """Prompt indices, those first that are to be used first.

        Asked when a step begins, of the whole buffer: what is left out is given up. And when it ends, of the
        finished groups: the first P are trained on, what is left out comes last. `version` is the trainer's;
        the order must depend on nothing else.
        """


class Tracker(Plugin, Protocol):
    """A sink for metrics; one that raises is reported once and never stops the job."""

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Called once, with the resolved spec without secrets."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one step."""

    def close(self) -> None:
        """Called once at the end, also after a failure."""
