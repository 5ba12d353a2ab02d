"""The dataclasses that the driver exchanges with the trainer and the engines.

    Prompt -> GenerateRequest -> engine -> Generation -> Sample
           -> TrainSequence, TrainStep -> trainer -> metrics

They hold numpy arrays, so that they are cheap to send to another process and tests do not need torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.generation import Generation as Generation  # noqa: PLC0414
from rlrun.plugins.generation import Sampling as Sampling  # noqa: PLC0414
from rlrun.plugins.images import PlacedImage
from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.specs.needs import Statistic


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request asks of an engine beside its sampling parameters.

    The fields are those of SGLang's /generate that may differ between prompts: the client sends each field
    that some prompt of a call sets, and the native engine reads all of them.
    """

    return_sampling_mask: bool = False
    """The answer has the tokens that each token was drawn from; `top_k` or `top_p` must limit them."""
    return_routed_experts: bool = False
    """The answer has the experts that each token was routed to; the model must have experts."""
    logprob_start_len: int = 0
    """Position in the prompt at which its scores begin, where the prompt is scored."""
    top_logprobs_num: int = 0
    """How many of the most probable tokens each scored position has."""


NO_OPTIONS = RequestOptions()


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Asks an engine for n samples of one prompt, each with its own seed."""

    id: str
    """`rid` on the wire; sample k is `<id>-<k>`."""
    tokens: NDArray[np.int32]
    """`[P]` token ids of the prompt."""
    seeds: tuple[int, ...]
    """`[n]`, one per sample."""
    sampling: Sampling
    session: str = ""
    """Each request of a session continues the one before, so they go to the engine that has its tokens in the
    cache. Sessions `x/1` and `x/2` both begin with the tokens of `x`. "" for a request without a session."""
    options: RequestOptions = NO_OPTIONS
    prompt_index: int = -1
    """Index of the prompt in the run; -1 outside of a rollout."""
    images: tuple[PlacedImage, ...] = ()
    """The images, in the order of their placeholders in `tokens`, which has one for each token of an image.
    The client sends one placeholder per image and the encoded files, as SGLang expects."""


@dataclass(frozen=True, slots=True)
class ImagePatches:
    """One image as the model's processor prepares it for the vision tower.

    Example: `ImagePatches(values=zeros([1564, 1176]), grid=(1, 34, 46), digest="9f86d081…")`
    """

    values: NDArray[np.float32]
    """`[t·h·w, patch size]` the processor's `pixel_values`."""
    grid: tuple[int, int, int]
    """Patches in time, height and width: the processor's `image_grid_thw`."""
    digest: str
    """SHA-256 of the encoded file. Sequences of one prompt share one object."""
    placed: PlacedImage | None = None
    """The encoded image, for engines that score the sequence; None in the trainer's processes."""


@dataclass(frozen=True, slots=True)
class PerToken:
    """Marks a field of `TrainSequence` that has one entry per token.

    This declares the array for all that carries it: `Columns` sends every marked field to the ranks, and a
    field of the same name in `LossBatch` has it on the device.
    """

    length: Literal["P + R", "R"]
    dtype: type[np.generic]


ResponseArray = Annotated[NDArray[np.float32], PerToken("R", np.float32)]
"""`[R]` one number per response token."""


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """A sample as the trainer sees it: a prompt of P tokens and a response of R tokens.

    Example, with P = 3 and R = 2:

        TrainSequence(
            tokens=np.array([9, 4, 7, 5, 2], np.int32),
            prompt_length=3,
            loss_mask=np.array([1, 1], np.float32),
            advantages=np.array([0.7, 0.7], np.float32),
            rollout_log_probs=np.array([-0.1, -1.2], np.float32),
            execution="17-0",
        )
    """

    tokens: Annotated[NDArray[np.int32], PerToken("P + R", np.int32)]
    """`[P + R]` token ids."""
    prompt_length: int
    """P, at least 1."""
    loss_mask: ResponseArray
    """`[R]`, 1 for tokens that are trained on, 0 for all others."""
    advantages: ResponseArray
    """`[R]`"""
    rollout_log_probs: ResponseArray
    """`[R]` log-probs that the engine returned; zeros without a rollout (SFT)."""
    execution: str
    """Id of the execution: its sequences count once in the loss, together."""
    old_log_probs: ResponseArray | None = None
    """`[R]` log-probs of the old policy. None: the loss uses the rollout's, or, with one optimizer step, the
    detached new ones; the spec decides."""
    proximal_share: ResponseArray | None = None
    """`[R]` where the policy before the update is on the way from the weights that made a token, 0, to the
    trained policy, 1; None unless `old_log_probs = "interpolated"`."""
    reference_log_probs: ResponseArray | None = None
    """`[R]` log-probs of the reference; None unless the algorithm needs it."""
    teacher_top_ids: Annotated[NDArray[np.int32], PerToken("R", np.int32)] | None = None
    """`[R, k]` the teacher's most probable tokens, -1 for one that the policy does not have; None unless
    `needs.divergence`, or before the teacher's pass."""
    teacher_top_log_probs: ResponseArray | None = None
    """`[R, k + 1]` their log-probs, and in the last column that of all other tokens together."""
    distilled: ResponseArray | None = None
    """`[R]` 1 where the divergence from the teacher counts, 0 in samples for which the teacher has no prompt,
    and where its tokens cannot be compared; None unless the teacher has a prompt or a tokenizer of its own
    (`teacher.prompt`, `teacher.tokenizer`)."""
    values: ResponseArray | None = None
    """`[R]` values of the critic before the update; None unless the algorithm needs a critic."""
    returns: ResponseArray | None = None
    """`[R]` targets that the critic is fitted to; None unless the algorithm needs a critic."""
    marks: ResponseArray | None = None
    """`[R]` the algorithm's marks; None unless the algorithm needs them."""
    cross_entropy: ResponseArray | None = None
    """`[R]` weights of each token's -log-prob in the loss; None if no token of the step has one."""
    kl_weights: ResponseArray | None = None
    """`[R]` what each token's KL to the reference is multiplied by; None if no sample of the step has it."""
    experts: Annotated[NDArray[np.int16], PerToken("P + R", np.int16)] | None = None
    """`[P + R, layers × K]` experts to route each token to, -1 if the router decides. None: the router
    decides everywhere."""
    sampling_mask: SamplingMask | None = None
    """The tokens that each of the R softmaxes runs over; None: all run over the whole vocabulary."""
    current: ResponseArray | None = None
    """`[R]` 1 for tokens that the weights before the update made, 0 for those of older weights; None unless
    `true_on_policy` is set."""
    images: tuple[ImagePatches, ...] = ()
    """The images of prompt and response, in the order of their placeholders in `tokens`."""
    image_starts: tuple[int, ...] = ()
    """Position in `tokens` of each image's first placeholder. Other tokens with the placeholder's id are not
    images: the policy may generate it as the last token of its answer."""

    def placed_images(self) -> tuple[PlacedImage, ...]:
        """Returns the images as engines take them; none in the trainer's processes."""
        return tuple(patches.placed for patches in self.images if patches.placed is not None)


def _mark(annotation: Any) -> PerToken | None:
    """Returns the mark of a field's type, which may be optional."""
    marks = [
        mark for part in (annotation, *get_args(annotation)) for mark in getattr(part, "__metadata__", ())
    ]
    return next((mark for mark in marks if isinstance(mark, PerToken)), None)


PER_TOKEN: Mapping[str, PerToken] = {
    item.name: mark for item in fields(TrainSequence) if (mark := _mark(item.type)) is not None
}
"""Every field of `TrainSequence` with one entry per token."""


DIFFERENCE = "train/train_rollout_logprob_abs_diff"
"""The metric that compares the log-probs of engines and trainer; with `_max`, the largest difference."""

MicroBatches = tuple[tuple[tuple[int, ...], ...], ...]
"""`[data rank][micro-batch]` -> indices of sequences."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One optimizer step: the micro-batches of every data rank, and the weight of every sequence in the loss.

    loss = sum over sequences i and response tokens t of scale[i] * loss_mask[i][t] * token_loss[i][t]
         - the same sum of scale[i] * cross_entropy[i][t] * log_prob[i][t]

    Example, for two data ranks with two micro-batches each (`per_sample_mean`, responses of 2 or 4 tokens):

        TrainStep(
            micro_batches=(((0, 3), (1,)), ((2,), (4, 5))),
            scale={0: 1 / 12, 1: 1 / 24, 2: 1 / 24, 3: 1 / 12, 4: 1 / 12, 5: 1 / 12},
        )
    """

    micro_batches: MicroBatches
    """`[data rank][micro-batch]` -> indices into the sequences of the rollout step; every rank has the same
    number of micro-batches."""
    scale: Mapping[int, float]
    """Weight of a sequence's tokens, by the index of the sequence. It contains the global denominators
    already (rlrun.runner.batches.reduction)."""
    has_cross_entropy: bool = False
    """Some token of the step has a weight for its cross-entropy, so every rank measures the term."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The algorithm's own numbers of the step (`StatefulAlgorithm.step_values`)."""


Role = Literal["policy", "reference", "teacher", "critic"]
"""A model that the trainer's ranks hold."""

Output = Literal["log_probs", "values", "top_ids", "top_log_probs"] | Statistic
"""What a forward pass of a model returns for every response token: only a critic returns values, only the
policy returns statistics of its distribution, and only a teacher its most probable tokens."""


@dataclass(frozen=True, slots=True)
class TrainerSetup:
    """The arguments with which one trainer rank starts."""

    spec_json: str
    """The resolved spec (rlrun.specs.sections.job.Spec), as JSON."""
    model_folder: str
    """Local HF folder with config.json, tokenizer and weights."""
    rank: int
    device: Literal["cpu", "cuda"]
    """What the spec says that it computes on. `cuda`: the only GPU that its process sees."""
    world_size: int
    master_addr: str
    master_port: int
    threads: int
    optimizer_steps: int
    """Optimizer steps of the whole job, at which the learning-rate schedules end."""
    critic_only: int = 0
    """How many of the first optimizer steps train only the critic; the policy's schedule skips them."""
    teacher_folder: str | None = None
    """Local HF folder of the teacher; None unless the algorithm needs one."""
    reference_folder: str | None = None
    """Local HF folder of the reference; None: the policy as it starts."""
    critic_folder: str | None = None
    """Local HF folder that the critic starts from; None: the policy as it starts."""
    weights_folder: str = ""
    """Folder for weights that engines read from a disk, which they can read too; "" for other carriers."""
    host: str = ""
    """Address of this rank's host; "": that of rank 0."""
    engine_process: int | None = None
    """Number of the process of the policy's engines on this rank's GPU, counted over all engines; None: no
    engine uses that GPU."""
