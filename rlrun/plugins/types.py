"""The dataclasses that plugins receive and return.

    data source -> Row -> (tokenised by the framework) Prompt -> rollout -> Sample, n to a Group
    -> rewards, filters -> advantages -> trainer

Lengths: P tokens of a prompt, R tokens of a response. Until the trainer everything is plain Python and numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlrun.plugins.sampling_mask import SamplingMask


Message = Mapping[str, Any]
"""One chat message: `{"role": "user", "content": "What is 2 + 2?"}`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a dataset, before tokenisation.

    Example: `Row(id="17", prompt="What is 2 + 2?", label="4", metadata={"split": "train"})`
    """

    id: str
    """Unique in its dataset, and the same in every run."""
    prompt: str | Sequence[Message]
    """Plain text (one user message when a chat template is applied), or the messages themselves."""
    label: Any = None
    """The value that rewards compare the response with; None if they need none."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that the rewards need, as JSON values."""
    response: str | None = None
    """The demonstration, for SFT and DPO; None if the policy answers the prompt."""
    rejected: str | None = None
    """The worse response of the pair, for DPO."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised row, and its position in the run."""

    row: Row
    index: int
    """Position in the run's endless sequence of prompts (epochs follow each other); orders kept groups."""
    tokens: NDArray[np.int32]
    """`[P]` token ids, chat template applied."""


class Status(StrEnum):
    """How a sample ended."""

    COMPLETED = "completed"
    """A stop token or stop string."""
    TRUNCATED = "truncated"
    """The token budget."""
    ABORTED = "aborted"
    """rlrun ended the request early."""
    FAILED = "failed"
    """An engine or environment error; never trained on, always counted."""

    @property
    def is_finished(self) -> bool:
        """Whether there is a response that can be scored."""
        return self in (Status.COMPLETED, Status.TRUNCATED)


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens `start` to `end` (exclusive) of a response came from weights `version`."""

    version: int
    start: int
    end: int


@dataclass(slots=True)
class Sample:
    """One response to a prompt.

    Example, with R = 2; the scorer sets `reward` and `rewards` later:

        Sample(
            id="17-0",
            prompt=prompt,
            tokens=np.array([19, 2], np.int32),
            log_probs=np.array([-0.1, -1.2], np.float32),
            loss_mask=np.array([1, 1], np.float32),
            versions=(VersionSpan(version=3, start=0, end=2),),
            status=Status.COMPLETED,
            text="4",
        )
    """

    id: str
    """`<prompt index>-<number in the group>`."""
    prompt: Prompt
    tokens: NDArray[np.int32]
    """`[R]` response token ids, the stop token included."""
    log_probs: NDArray[np.float32]
    """`[R]` float32 engine log-probs at the sampling temperature, over `sampling_mask` where there is one."""
    loss_mask: NDArray[np.float32]
    """`[R]` 1 for tokens that the policy generated and is trained on, 0 for all others."""
    versions: tuple[VersionSpan, ...]
    """Which weights generated which tokens; the spans cover `[0, R)`."""
    status: Status
    text: str
    """The response decoded, without the stop token."""
    execution_id: str = ""
    """Id of the execution; samples with the same id count once in the loss. "": the sample's own id."""
    reward: float = float("nan")
    """Weighted sum of the rewards; NaN until scored."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Every reward by the name of its plugin."""
    failure: str | None = None
    """Why the sample failed, or the error of its reward; None for neither."""
    info: dict[str, Any] = field(default_factory=dict)
    """Notes of the rollout for rewards and for the saved samples, as JSON values."""
    experts: NDArray[np.int16] | None = None
    """`[P + R - 1, layers × K]` experts that the engine sent each token to; None unless
    `trainer.moe.routing_replay = "engine"`."""
    sampling_mask: SamplingMask | None = None
    """The tokens that each token was drawn from; None unless `rollout.sampling_mask` is in effect."""
    policy_log_probs: NDArray[np.float32] | None = None
    """`[R]` log-probs of the policy before the update, for advantages; None unless
    `needs.policy_log_probs`."""
    reference_log_probs: NDArray[np.float32] | None = None
    """`[R]` log-probs of the reference, for advantages; None unless `needs.reference`."""
    teacher_log_probs: NDArray[np.float32] | None = None
    """`[R]` log-probs of the teacher, for advantages; None unless `needs.teacher`."""
    values: NDArray[np.float32] | None = None
    """`[R]` the critic's value before each token; None unless `needs.critic`."""
    value_after: float | None = None
    """The critic's value after the last token, as if the sample had not ended; None unless
    `needs.critic`."""

    def __post_init__(self) -> None:
        length = len(self.tokens)
        assert len(self.log_probs) == len(self.loss_mask) == length, "tokens, log-probs and mask must align"
        mask = self.sampling_mask
        assert mask is None or len(mask) == length, "tokens and the sampling mask must align"

    @property
    def execution(self) -> str:
        """Returns the id of the execution, which is the sample's own id if it is the only one."""
        return self.execution_id or self.id

    @property
    def made(self) -> NDArray[np.bool_]:
        """Returns `[R]`, whether the policy generated a token. Tokens that it was given, such as a tool's
        result, have neither a loss mask nor a log-prob.

        A generated token that was the only candidate has log-prob 0, but a sampling mask.
        """
        made: NDArray[np.bool_] = (self.loss_mask > 0) | (self.log_probs != 0)
        return made if self.sampling_mask is None else made | (self.sampling_mask.lengths > 0)

    @property
    def oldest_version(self) -> int:
        """Returns the oldest version that generated a token of this sample; -1 for an empty response."""
        return min((span.version for span in self.versions), default=-1)


@dataclass(slots=True)
class Group:
    """The n samples of one prompt.

    Example: `Group(prompt, samples=[first, second, third, fourth])`, whose ids are "17-0" to "17-3"
    """

    prompt: Prompt
    samples: list[Sample]


@dataclass(frozen=True, slots=True)
class Buffered:
    """A group of an earlier step that waits in the buffer of partial rollouts."""

    index: int
    """The prompt's position in the run."""
    finished: bool
    """Whether it is scored and can be trained on. Otherwise its samples are continued."""
    tokens: int
    """Response tokens of all its samples so far."""
    oldest_version: int
    """The oldest version that generated one of these tokens; -1 if there are none."""


Rewarded = float | Mapping[str, float | str]
"""A reward's result for one sample: a number, or named values, one of which the spec's `key` selects.

Values that are text are only shown, by `rlrun score`."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A filter's decision to drop a group, or to remove some of its samples.

    Example: `Drop("too_long", samples=(0, 3))`
    """

    reason: str
    """Last part of the metric: `rollout/dropped/<filter>/<reason>` counts groups,
    `rollout/dropped_samples/<filter>/<reason>` counts samples."""
    samples: tuple[int, ...] | None = None
    """Indices in `group.samples`; None: the whole group."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A filter's decision not to train on some samples, whose rewards still count in the group's statistics.

    Example: `Mask("repetition", samples=(2,))`
    """

    reason: str
    """Last part of the metric `rollout/masked_samples/<filter>/<reason>`."""
    samples: tuple[int, ...]
    """Indices in `group.samples`."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The inputs of an algorithm's loss for one micro-batch: the concatenated response tokens of its samples.

    There are T response tokens of B samples. Every field is a torch tensor with all its methods, so that an
    algorithm does not have to import torch.
    """

    log_probs: Any
    """`[T]` float32 log-probs of the policy, with gradient, at the sampling temperature. Like all other
    log-probs they are over the sampling mask, where there is one."""
    entropy: Any
    """`[T]` float32 entropy of the distribution of `log_probs`: over the whole vocabulary, or over the tokens
    that remain after top-k and top-p (`rollout.sampling_mask`). It has a gradient only with
    `needs.entropy_grad`."""
    old_log_probs: Any
    """`[T]` float32, no gradient: the denominator of the ratio."""
    rollout_log_probs: Any
    """`[T]` float32, no gradient: the engine's log-probs; zeros without a rollout (SFT)."""
    reference_log_probs: Any | None
    """`[T]` float32, no gradient; None unless `needs.reference`."""
    advantages: Any
    """`[T]` float32, no gradient."""
    mask: Any
    """`[T]` float32, 1 on trained tokens."""
    sample: Any
    """`[T]` int64, the index of the sample that a token belongs to."""
    num_samples: int
    """B."""

    def sample_sum(self, values: Any) -> Any:
        """Returns `[B]`, the sum of `[T]` values over each sample."""
        return values.new_zeros(self.num_samples).index_add(0, self.sample, values)


@dataclass(frozen=True, slots=True)
class ValueInputs:
    """The inputs of a critic's loss for one micro-batch; every field is a `[T]` float32 tensor."""

    values: Any
    """The critic's values, with gradient."""
    old_values: Any
    """The critic's values before the update, no gradient."""
    returns: Any
    """The targets of the values, no gradient."""
    mask: Any
    """1 on trained tokens, 0 on all others."""


@dataclass(frozen=True, slots=True)
class LossOutputs:
    """The result of a loss; the framework masks and reduces the loss and its metrics in the same way."""

    loss: Any
    """`[T]` float32 token losses, with gradient."""
    metrics: Mapping[str, Any]
    """`[T]` tensors without gradient by metric name without `train/` (`pg_loss`, `clip_frac`, …)."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm needs from the framework, which loads and computes nothing else."""

    rollout: bool = True
    """The policy answers the prompts. False: rows contain demonstrations (SFT)."""
    rewards: bool = True
    """The advantages use rewards. False: another signal, such as a teacher, scores the tokens."""
    pairs: bool = False
    """Rows have a preferred and a rejected response, which are adjacent in one micro-batch (DPO)."""
    reference: bool = False
    """Log-probs of the frozen reference policy."""
    teacher: bool = False
    """Log-probs of the model of `[teacher]`, set on samples before `advantages` is called."""
    critic: bool = False
    """Values of the critic, set on samples before `advantages` is called. The algorithm is an `ActorCritic`,
    which also has `returns` and `value_loss`."""
    policy_log_probs: bool = False
    """Log-probs of the policy, set on samples before `advantages` is called."""
    entropy_grad: bool = False
    """The loss contains the entropy."""
    old_log_probs: bool = True
    """The loss contains a ratio to the policy that generated the samples."""
    trainer_log_probs: bool = False
    """Old log-probs of the trainer, in addition to the engine's: `old_log_probs = "rollout"` is an error."""
    group_relative: bool = False
    """Advantages compare the samples of a group, so n must be at least 2."""
