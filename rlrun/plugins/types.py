"""What plugins are given and give back.

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
    """Unique in its dataset; stable across runs."""
    prompt: str | Sequence[Message]
    """Plain text (one user message when a chat template is applied), or the messages themselves."""
    label: Any = None
    """What rewards compare with; None where they need nothing."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything else the rewards need; JSON values."""
    response: str | None = None
    """The demonstration, for SFT and DPO; None for prompts that the policy answers."""
    rejected: str | None = None
    """The answer that `response` was preferred to, for DPO."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised row at its place in the run."""

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
    """Cut short by us."""
    FAILED = "failed"
    """An engine or environment error; never trained on, always counted."""

    @property
    def is_finished(self) -> bool:
        """There is an answer that can be scored."""
        return self in (Status.COMPLETED, Status.TRUNCATED)


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens `start` to `end` (exclusive) of a response came from weights `version`."""

    version: int
    start: int
    end: int


@dataclass(slots=True)
class Sample:
    """One completion of a prompt."""

    id: str
    """`<prompt index>-<number in the group>`."""
    prompt: Prompt
    tokens: NDArray[np.int32]
    """`[R]` response token ids, the stop token included."""
    log_probs: NDArray[np.float32]
    """`[R]` float32 engine log-probs at the sampling temperature, over `sampling_mask` where there is one."""
    loss_mask: NDArray[np.float32]
    """`[R]` 1 where the policy made the token and is trained on it, else 0."""
    versions: tuple[VersionSpan, ...]
    """Which weights made which tokens; covers `[0, R)`."""
    status: Status
    text: str
    """The response decoded, without the stop token."""
    execution_id: str = ""
    """Samples of one agent execution share it and count once in the loss; "" means the sample's own id."""
    reward: float = float("nan")
    """Weighted sum of the rewards; NaN until scored."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Each reward by its plugin's name."""
    failure: str | None = None
    """Why the sample failed, or its reward's error."""
    info: dict[str, Any] = field(default_factory=dict)
    """What the rollout noted, for rewards and for the record: JSON values."""
    experts: NDArray[np.int16] | None = None
    """`[P + R - 1, layers × K]` the experts that the engine sent each token to; None unless
    `trainer.moe.routing_replay = "engine"`."""
    sampling_mask: SamplingMask | None = None
    """The tokens that each of the R was drawn from; None unless `rollout.sampling_mask` is in effect."""
    policy_log_probs: NDArray[np.float32] | None = None
    """`[R]` of the policy before the update, for advantages; None unless `needs.policy_log_probs`."""
    reference_log_probs: NDArray[np.float32] | None = None
    """`[R]` of the reference policy, for advantages; None unless `needs.reference`."""
    teacher_log_probs: NDArray[np.float32] | None = None
    """`[R]` of the teacher; None unless `needs.teacher`."""
    values: NDArray[np.float32] | None = None
    """`[R]` what the critic expects from before each token on; None unless `needs.critic`."""
    value_after: float | None = None
    """What the critic expects after the last token, had the sample not ended; None unless `needs.critic`."""

    def __post_init__(self) -> None:
        length = len(self.tokens)
        assert len(self.log_probs) == len(self.loss_mask) == length, "tokens, log-probs and mask must align"
        mask = self.sampling_mask
        assert mask is None or len(mask) == length, "tokens and the sampling mask must align"

    @property
    def execution(self) -> str:
        """What names its execution: its own id where it is the only sample of one."""
        return self.execution_id or self.id

    @property
    def made(self) -> NDArray[np.bool_]:
        """`[R]` whether the policy made a token: what it was given has neither mask nor log-prob.

        A token that was the only candidate has log-prob 0.
        """
        made: NDArray[np.bool_] = (self.loss_mask > 0) | (self.log_probs != 0)
        return made if self.sampling_mask is None else made | (self.sampling_mask.lengths > 0)

    @property
    def oldest_version(self) -> int:
        """The oldest weights that made a token of this sample (-1 for an empty response)."""
        return min((span.version for span in self.versions), default=-1)


@dataclass(slots=True)
class Group:
    """The n samples of one prompt."""

    prompt: Prompt
    samples: list[Sample]


@dataclass(frozen=True, slots=True)
class Buffered:
    """A group of an earlier step that waits in the buffer of partial rollouts."""

    index: int
    """Of its prompt in the run."""
    finished: bool
    """It is scored and may be trained on; else it is to be generated further."""
    tokens: int
    """Response tokens so far, of all its samples."""
    oldest_version: int
    """The oldest weights that made one of them; -1 where there is none."""


Rewarded = float | Mapping[str, float | str]
"""A reward's answer for one sample: a number, or named values of which the spec's `key` picks one number.

Text in a table is for people: `rlrun score` shows it."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A filter's verdict against a group, or against some of its samples, which then are no part of it.

    Example: `Drop("too_long", samples=(0, 3))`
    """

    reason: str
    """Names the metric: `rollout/dropped/<filter>/<reason>` of groups, `rollout/dropped_samples/…` of
    samples."""
    samples: tuple[int, ...] | None = None
    """Places in `group.samples`; None: the whole group."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A filter's verdict against samples of a group: they are not trained on, and their rewards still count
    in the group's statistics.

    Example: `Mask("repetition", samples=(2,))`
    """

    reason: str
    """Names the metric `rollout/masked_samples/<filter>/<reason>`."""
    samples: tuple[int, ...]
    """Places in `group.samples`."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What an algorithm's loss sees of one micro-batch: response tokens of packed samples, concatenated.

    T response tokens of B samples. Every field is a torch tensor; their methods suffice: no need to
    import torch.
    """

    log_probs: Any
    """`[T]` float32 of the policy, with gradient, at the sampling temperature; over the sampling mask where
    there is one, as all other log-probs."""
    entropy: Any
    """`[T]` float32 of the distribution that `log_probs` are of: the full vocabulary's, or that of the tokens
    that top-k and top-p left (`rollout.sampling_mask`); with gradient only under `needs.entropy_grad`."""
    old_log_probs: Any
    """`[T]` float32, no gradient; denominator of the ratio."""
    rollout_log_probs: Any
    """`[T]` float32, no gradient: the engine's. Zeros where there was no rollout (SFT)."""
    reference_log_probs: Any | None
    """`[T]` float32, no gradient; None unless `needs.reference`."""
    advantages: Any
    """`[T]` float32, no gradient."""
    mask: Any
    """`[T]` float32, 1 on trained tokens."""
    sample: Any
    """`[T]` int64: which of the B samples a token belongs to."""
    num_samples: int
    """B."""

    def sample_sum(self, values: Any) -> Any:
        """Sum `[T]` values over each sample: `[B]`."""
        return values.new_zeros(self.num_samples).index_add(0, self.sample, values)


@dataclass(frozen=True, slots=True)
class ValueInputs:
    """What a critic's loss sees of one micro-batch; every field is a `[T]` float32 tensor."""

    values: Any
    """Of the critic, with gradient."""
    old_values: Any
    """Before the update, no gradient."""
    returns: Any
    """What they are fitted to, no gradient."""
    mask: Any
    """1 on trained tokens."""


@dataclass(frozen=True, slots=True)
class LossOutputs:
    """What a loss gives back; the framework masks and reduces it, and the metrics by the same reduction."""

    loss: Any
    """`[T]` float32 token losses, with gradient."""
    metrics: Mapping[str, Any]
    """`[T]` tensors without gradient by metric name, `train/` left out (`pg_loss`, `clip_frac`, …)."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm asks of the framework; nothing that it does not name is loaded or computed."""

    rollout: bool = True
    """Prompts are answered by the policy. False: rows carry demonstrations (SFT)."""
    rewards: bool = True
    """Rewards take part in the advantages; false where something else tells good tokens from bad ones."""
    pairs: bool = False
    """Rows carry a preferred and a rejected response, which stand side by side in one micro-batch (DPO)."""
    reference: bool = False
    """Log-probs of the frozen reference policy."""
    teacher: bool = False
    """Log-probs of the model of [teacher], on samples before `advantages` is called."""
    critic: bool = False
    """Values of the critic, on samples before `advantages` is called; the algorithm is an `ActorCritic`."""
    policy_log_probs: bool = False
    """Log-probs of the policy, on samples before `advantages` is called."""
    entropy_grad: bool = False
    """Entropy takes part in the loss."""
    old_log_probs: bool = True
    """A ratio to the policy that generated."""
    trainer_log_probs: bool = False
    """The trainer's own old log-probs beside the engine's, so `old_log_probs = "rollout"` is an error."""
    group_relative: bool = False
    """Advantages compare the samples of a group, so n must be at least 2."""
