"""The protocols of all kinds of plugins. A plugin is a class with a pydantic `Params` model.

The entry-point groups are `rlrun.algorithms`, `rlrun.data`, `rlrun.rewards`, `rlrun.filters`,
`rlrun.rollouts`, `rlrun.tools`, `rlrun.agents`, `rlrun.environments`, `rlrun.buffers`, `rlrun.hooks`,
`rlrun.trackers` and `rlrun.launchers`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.environments.turn import Turn
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.images import ToolResult
from rlrun.plugins.session import Session, SessionGroup
from rlrun.plugins.submission import Submission, SubmittedState
from rlrun.plugins.types import (
    Buffered,
    Choice,
    Drop,
    Group,
    LossInputs,
    LossOutputs,
    Mask,
    Message,
    Needs,
    PolicyPart,
    Rewarded,
    Row,
    Sample,
    ValueInputs,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

API_VERSION = 1
"""The version of these protocols. It rises when a protocol grows or changes; a plugin states the one it was
written for."""
OLDEST_API_VERSION = 1
"""The oldest version whose plugins still work. It rises when a change breaks older plugins."""


class Plugin(Protocol):
    """The members that every kind of plugin has."""

    Params: ClassVar[type[BaseModel]]
    """The model of its parameters, which are the keys beside `type` in the spec."""
    api_version: ClassVar[int]
    """The `API_VERSION` that the plugin was written for.

    A class whose parameters do not all have defaults may also have `example`, parameters to check it with.
    """

    def __init__(self, params: Any) -> None:
        """Creates the plugin, once in each process that uses it. Heavy work belongs here, not at import."""


class Algorithm(Plugin, Protocol):
    """Computes advantages (in numpy, on the driver) and the loss of each token (with torch tensors, on the
    trainer).

    Whatever `needs` lists of the policy, the reference, the teacher and the critic is set on the samples
    before `advantages` is called.
    """

    @property
    def needs(self) -> Needs:
        """What the framework must provide."""

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns one `[R]` array for each sample, in the order of `groups` and their samples."""

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns the token losses of one micro-batch, without reduction, mask or collective operation."""


class ActorCritic(Algorithm, Protocol):
    """An algorithm with `needs.critic`: samples have the critic's values before `advantages` is called."""

    def returns(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns the critic's targets: one `[R]` array for each sample, in the order of `advantages`."""

    def value_loss(self, inputs: ValueInputs) -> LossOutputs:
        """Returns the critic's token losses of one micro-batch, without reduction, mask or collective
        operation.
        """


class TokenMarker(Algorithm, Protocol):
    """An algorithm with `needs.marks`: its loss treats some tokens of a step differently from the others, and
    which ones depends on all tokens of the step. The driver has them all, so the choice does not depend on
    micro-batches or ranks.
    """

    def marks(
        self, groups: Sequence[Group], advantages: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """Returns `LossInputs.marks`: one `[R]` array for each sample, in the order of `advantages`."""


class StatefulAlgorithm(Algorithm, Protocol):
    """An algorithm with `needs.state`: it remembers something from step to step, on the driver alone. Its
    other methods must not change what it remembers.
    """

    def observe(self, groups: Sequence[Group]) -> None:
        """Receives the samples of a step, once, before `advantages` is called."""

    def step_values(self) -> Mapping[str, float]:
        """Returns numbers of the step by name. The loss reads them as `LossInputs.step_values`, and they are
        metrics with the prefix `train/`.
        """

    def state(self) -> Mapping[str, Any]:
        """Returns what it remembers, as JSON values, for every checkpoint."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state."""


class DataSource(Plugin, Protocol):
    """Returns rows by position; the framework shuffles, tokenises and drops them.

    It may have a class method `preview(params, count)` for `rlrun validate`, which yields about `count` rows,
    or raises the ValueError of a broken one, within a fraction of a second.
    """

    def __len__(self) -> int:
        """Returns the number of rows, including broken ones."""

    def __getitem__(self, index: int) -> Row:
        """Returns row `index`, the same row every time. Raises ValueError, naming the fault, for a broken
        row.
        """


class SteeredSource(DataSource, Protocol):
    """A data source that chooses its rows itself, from the results of earlier ones. The framework then
    neither shuffles them nor counts epochs.

    Its choices must depend on nothing but its parameters and the observed groups, so that a resumed run
    continues as it would have. Rows that are chosen but cannot be used are skipped.
    """

    def choose(self, samples: int) -> Choice:
        """Returns the next row, and how many samples of it to generate: at most `samples`."""

    def observe(self, group: Group) -> None:
        """Receives each scored group before any filter, with the samples that did not fail."""

    def metrics(self) -> Mapping[str, float]:
        """Returns metrics by name, without the prefix `rollout/`; called once per step."""

    def state(self) -> Mapping[str, Any]:
        """Returns what it has learnt, as JSON values, for every checkpoint."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state."""


class Reward(Plugin, Protocol):
    """Scores samples, in a separate process.

    If `score` is async, many samples are in flight at a time (`scoring.concurrency`). A reward that needs
    something of its rows may have a class method `check_row(params, row)`, which raises ValueError for a row
    that it cannot score; `rlrun validate` reports such a row, and a job counts it as broken. A reward that
    only reads the response may have a number `late_score`: a sample that takes too long (`scoring.timeout`)
    or too much memory to grade gets that score, because the response is the cause. One that reads `tokens` or
    `log_probs` of samples says so by `reads_tokens = True`: evaluations over messages have neither.
    """

    def score(self, sample: Sample) -> Rewarded | Awaitable[Rewarded]:
        """Returns the sample's reward. An exception is recorded as that sample's error."""


class GroupReward(Plugin, Protocol):
    """A reward that receives all samples of a prompt together, to compare them or to send one request for
    all.
    """

    def score_group(self, samples: Sequence[Sample]) -> Sequence[Rewarded] | Awaitable[Sequence[Rewarded]]:
        """Returns a reward for each sample, in order; may be async. An exception fails all samples."""


class Filter(Plugin, Protocol):
    """Keeps a scored group (None), drops it or some of its samples, or masks some, with a reason.

    If its attribute `keep_when_short` is true, groups that it dropped are used after all when a step has too
    few. A filter that remembers something has `state()`, which returns JSON values for every checkpoint, and
    `restore(state)`.
    """

    def __call__(self, group: Group) -> Drop | Mask | None:
        """Returns the verdict on one group."""


Executed = Trajectory | Sequence[Trajectory]
"""The result of an execution: a training sample, or several that share its id and count once in the loss."""


class Rollout(Plugin, Protocol):
    """Answers prompts by calling the policy. It runs in the driver's event loop and must not block it.

    It may have `tools`, JSON schemas for the chat template of every prompt, and `async close()`, which is
    called once at the end.
    """

    async def run(self, session: Session) -> Executed:
        """Carries out one execution. An exception, or running past `rollout.request_timeout`, fails only this
        execution.
        """


class Tool(Plugin, Protocol):
    """A tool that the policy may call in a conversation. It runs in the driver's event loop and must not
    block it.

    It may have `async close()`, which is called once at the end. A tool that keeps state between the calls of
    a conversation has `begin(session)`, which returns the tool for one execution; that tool may also have
    `async close()`, and `info()`, which returns JSON values to be noted on the sample.
    """

    @property
    def schema(self) -> Mapping[str, Any]:
        """Schema for chat templates: `{"type": "function", "function": {name, description, parameters}}`."""

    async def call(self, arguments: Mapping[str, Any]) -> str | ToolResult:
        """Returns the result that the policy reads, or sees if it has images.

        A ValueError is a mistake of the policy, which is told; any other error fails the execution. The call
        is cancelled when it takes too long.
        """


class Agent(Plugin, Protocol):
    """A program around the policy. It runs in the driver's event loop and must not block it.

    It may have `async close()`, which is called once at the end.
    """

    async def run(self, task: AgentTask) -> Mapping[str, Any] | None:
        """Carries out one execution, by requests to `task.base_url`; returns JSON values for rewards and the
        saved samples.

        An exception fails the execution. The call is cancelled when it takes too long.
        """


class Environment(Plugin, Protocol):
    """A world in which the policy acts, with its own tasks and rewards. It runs in a process of its own, in
    the interpreter that the spec names, so it may block.

    An instance runs one execution at a time, and serves another one after its end. Its methods may be async.
    It may have `close()`, which is called when an instance is no longer used. The random numbers of the
    module `random` are those of the execution, from its seed.

    An environment that asks the policy itself has `run` in place of `reset` and `step`. One instance of it
    serves all executions of its process.
    """

    def tasks(self) -> Sequence[Row | Mapping[str, Any]]:
        """Returns the tasks, the same every time: rows, or tables with the fields of a row."""

    def reset(self, task: AgentTask) -> str | Sequence[Message] | None:
        """Begins an execution. Returns the first messages, a text being a user message; None: the row's
        prompt.
        """

    def step(self, action: str) -> Turn | tuple[Any, ...]:
        """Returns the answer to the policy's action: what it reads next, the reward, whether the execution
        has ended, and values to note.

        A PolicyError ends the execution with its reward, an InfrastructureError has it run again, and any
        other exception fails it (rlrun.plugins.failures).
        """

    async def run(self, task: AgentTask) -> Mapping[str, Any] | None:
        """Carries out one execution as an agent does, by requests to `task.base_url`, and returns what an
        agent returns. It must not block: executions run beside each other. A plain function gets a thread.
        """


class GroupRollout(Plugin, Protocol):
    """A rollout that runs all executions of a prompt together."""

    async def run_group(self, group: SessionGroup) -> Sequence[Executed]:
        """Returns the result of each execution, in the order of `group.sessions`; an exception fails all of
        them.
        """


class BufferStrategy(Plugin, Protocol):
    """Decides the order in which groups that partial rollouts kept are used in the next step."""

    def order(self, buffered: Sequence[Buffered], version: int) -> Sequence[int]:
        """Returns prompt indices in the order in which the groups are to be used.

        It is called when a step begins, with the whole buffer: groups whose index is not returned are
        discarded. It is called again when the step ends, with the finished groups: the first P are trained
        on, and groups not returned come last. `version` is the trainer's; the order must not depend on
        anything else.
        """


class Hook(Plugin, Protocol):
    """Looks at the steps of a job, or changes them. It has at least one of these methods.

    It is created in the driver for `on_removed` and `on_samples`, and on every trainer rank for the others.
    What it does must depend on nothing but its arguments and parameters, so that a resumed run continues as
    it would have. An exception ends the job.
    """

    def on_removed(self, groups: Sequence[Group]) -> None:
        """Receives the samples that were scored since the step before and are not trained on, because a
        filter dropped them, they are too old or the batch was full. Called before `on_samples` of each step,
        also with no groups.

        A group has only those of its samples that were removed. The method may set their `info`, which is
        saved with those that are kept in the run's folder.
        """

    def on_samples(self, groups: Sequence[Group]) -> None:
        """Receives what a step trains on, after rewards and filters and before any model reads it.

        It may set entries of a sample's `loss_mask` from 1 to 0, which then count in no denominator, and
        `info`, which is saved. Whatever else it changes is an error.
        """

    def on_model(self, part: PolicyPart) -> None:
        """Receives a rank's part of the policy, once, when its weights are loaded: for forward hooks, or to
        freeze parameters.
        """

    def on_batch(self, inputs: LossInputs) -> Any | None:
        """Receives each packed micro-batch that a loss is computed of, on its rank.

        Returns `[T]` other advantages, or None to keep them. Denominators stay as they are.
        """

    def before_update(self, part: PolicyPart) -> None:
        """Receives a rank's part of the policy before each of its optimizer steps, when all gradients are
        there and before their norm is taken. It may change gradients in place, in the same way on all ranks.
        """


class Tracker(Plugin, Protocol):
    """Receives metrics. A tracker that raises is reported once and never stops the job.

    A tracker that shows tables also has `log_table(step, name, columns, rows)`. It is called before `log` of
    the same step, with up to 16 samples: `name` is `samples`, or `eval/<dataset>/samples`; `columns` are
    names; a cell of `rows` is a text, a number or None.

    A tracker that can tell people also has `alert(step, name, sentence)`, which is called when an alert of
    docs/alerts.md begins, after `log` of the step.
    """

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Called once, with the resolved spec, from which secrets are removed."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called with the metrics of one step."""

    def close(self) -> None:
        """Called once at the end, even after a failure."""


class Launcher(Plugin, Protocol):
    """Hands jobs to a scheduler. `files` is pure; the other methods only call the scheduler's own tools, and
    raise SchedulerError with their words.

    `id` is what `submit` returned, and `folder` is `Submission.folder`.
    """

    def files(self, job: Submission) -> Mapping[str, str]:
        """Returns the texts of the files that the scheduler needs, by their names in the job's folder.

        What runs on the machines is `rlrun attempt`, which starts `rlrun node` on each of them, or joins the
        Ray cluster that the scheduler has started. Raises ValueError for a job that the scheduler cannot run.
        """

    def submit(self, job: Submission) -> str:
        """Hands the job, whose files are in its folder, to the scheduler; returns the job's id.

        Raises ValueError for secrets that the job would not have (`secret_values` in launchers/commands.py).
        """

    def state(self, id: str, folder: Path) -> SubmittedState:
        """Returns what the scheduler says of the job."""

    def cancel(self, id: str, folder: Path) -> None:
        """Takes the job from the scheduler, whether it runs or waits."""

    def output(self, folder: Path) -> Path:
        """Returns the file with what the job printed over all attempts; it may not exist yet."""
