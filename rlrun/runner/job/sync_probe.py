"""Checks after each update that the engines' log-probs have moved as the trainer's have.

    first batch ──▶ one short sequence, kept for the run
    each update     trainer's log-probs of it ─┐
                    every engine's             ┴─▶ both have moved since the first update ─▶ else an error

Checksums show that engines hold what was sent. This check also notices engines that hold it and generate with
something else, such as the frozen model below the adapters: that looks like staleness, and the run goes on
(verl's issue 7495). Only differences are compared, because the trainer divides logits by the sampling
temperature and engines score at temperature 1.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.images import PlacedImage
from rlrun.runner.batches.model_handle import ModelHandle
from rlrun.runner.contracts.carriers import DIFFERENCE, TrainSequence, TrainStep
from rlrun.runner.contracts.errors import JobError
from rlrun.specs.problems.codes import Code

LogProbs = NDArray[np.float32]
ScoreOnEach = Callable[[NDArray[np.int32], Sequence[PlacedImage]], Awaitable[Mapping[str, LogProbs]]]
"""Returns log-probs `[T - 1]` of a sequence and its images from each engine, by its name."""

MAX_TOKENS = 128
MIN_MOVE = {"float32": 1e-3, "bfloat16": 0.05}
"""Root mean square of the trainer's moves, in nats, from which engines must have moved too. It is far above
the noise of a precision once it is averaged over a sequence's tokens."""
MIN_SHARE = 0.2
"""The share of the trainer's moves that an engine must follow; about the temperature if all is well."""


def check_pass(step: int, sequences: Sequence[TrainSequence], log_probs: Sequence[LogProbs]) -> None:
    """Raises JobError unless engines and trainer have the same log-probs in a step with `true_on_policy`.

    `log_probs`: the trainer's, from a pass over all sequences before the first update. Tokens that are not
    trained on, or that older weights made, do not count.
    """
    for sequence, ours in zip(sequences, log_probs, strict=True):
        compared = sequence.loss_mask if sequence.current is None else sequence.loss_mask * sequence.current
        _check_difference(np.abs((ours - sequence.rollout_log_probs)[compared > 0]).max(initial=0.0), step)


def check_update(updates: Sequence[Mapping[str, float]], step: int) -> None:
    """Raises JobError as `check_pass` does, by the metrics of the first of a step's optimizer steps.

    That is enough where it is the only one. Later ones may compare with weights that were updated meanwhile,
    so that a step with several has a pass, too.
    """
    _check_difference(updates[0][f"{DIFFERENCE}_max"], step)


def _check_difference(difference: float, step: int) -> None:
    if difference == 0.0:
        return
    raise JobError(
        f"true_on_policy: in step {step} the log-probs of engines and trainer differ by up to "
        f"{difference:.3g}. They are equal where every engine and every rank runs the same version of rlrun "
        "and torch, and on GPUs of SGLang, on the same type of processor. To continue without "
        "exact equality, resume with true_on_policy = false"
    )


class SyncProbe:
    """Scores the same sequence with the trainer and with the engines after each update."""

    def __init__(
        self, policy: ModelHandle, score: ScoreOnEach, *, precision: str, temperature: float = 1.0
    ) -> None:
        """`precision`: the coarser one of trainer and engines. `temperature`: that of the rollout."""
        self._policy, self._score = policy, score
        self._least_move = MIN_MOVE[precision]
        self._least_share = MIN_SHARE * min(1.0, temperature)
        self._sequence: TrainSequence | None = None
        self._trainer: LogProbs | None = None
        self._first: tuple[int, LogProbs, LogProbs] | None = None
        """The first version that was compared, and the log-probs of trainer and engines at that version."""

    def choose(self, sequences: Sequence[TrainSequence]) -> None:
        """Keeps the beginning of one of the first batch's sequences: the one with the longest response."""
        if self._sequence is None and sequences:
            longest = max(sequences, key=lambda sequence: len(sequence.loss_mask))
            self._sequence = _shortened(longest)

    async def score_with_trainer(self) -> None:
        """Computes the trainer's log-probs, before the engines get its weights."""
        if self._sequence is not None:
            data_degree = 1 + max(self._policy.data_ranks)
            # every data rank takes part, with a copy of its own
            steps = [TrainStep(tuple(((rank,),) for rank in range(data_degree)), {})]
            self._trainer = (await self._policy.log_probs([self._sequence] * data_degree, steps))[0]

    async def check(self, version: int) -> None:
        """Compares every engine, which has the weights of `version`, with the trainer.

        Raises JobError, naming the engine, if its log-probs have stayed while the trainer's have moved.
        """
        if self._sequence is None or self._trainer is None:
            return
        start = self._sequence.prompt_length - 1
        answers = await self._score(self._sequence.tokens, self._sequence.placed_images())
        scores = {name: log_probs[start:] for name, log_probs in answers.items()}
        if self._first is None and scores:
            self._first = version, self._trainer, next(iter(scores.values()))
        for name, log_probs in scores.items():
            assert self._first is not None
            since, trainer, engine = self._first
            reason = self._lag(self._trainer - trainer, log_probs - engine)
            if reason is not None:
                raise JobError(
                    f"{name} confirmed weights {version}, and does not generate with them: of one sequence, "
                    f"{reason} since weights {since}. Check what else changes its weights or adapters; with "
                    '[trainer.lora], engine.lora_sync = "merged" sends the whole model instead of adapters',
                    code=Code.WEIGHTS,
                )

    def _lag(self, trainer: LogProbs, engine: LogProbs) -> str | None:
        """Returns how an engine's moves differ from the trainer's; None if it follows, or they are small."""
        move = float(np.sqrt(np.mean(np.square(trainer))))
        share = float(np.dot(trainer, engine) / max(float(np.dot(trainer, trainer)), 1e-30))
        if move < self._least_move or share >= self._least_share:
            return None
        engine_move = float(np.sqrt(np.mean(np.square(engine))))
        return f"the trainer's log-probs moved by {move:.2g} nats and the engine's by {engine_move:.2g}"


def _shortened(sequence: TrainSequence) -> TrainSequence:
    """Returns a sequence with at most MAX_TOKENS of its prompt and as many of its response.

    A prompt with images is kept whole, and the response ends before its first image.
    """
    prompt_length = sequence.prompt_length
    in_prompt = [start for start in sequence.image_starts if start < prompt_length]
    later = sequence.image_starts[len(in_prompt) :]
    dropped = 0 if in_prompt else max(0, prompt_length - MAX_TOKENS)
    length = min([MAX_TOKENS, *(start - prompt_length for start in later)])
    kept, response = slice(dropped, prompt_length + length), slice(0, length)
    return TrainSequence(
        tokens=sequence.tokens[kept].copy(),
        prompt_length=sequence.prompt_length - dropped,
        loss_mask=sequence.loss_mask[response].copy(),
        advantages=np.zeros(len(sequence.loss_mask[response]), np.float32),
        rollout_log_probs=sequence.rollout_log_probs[response].copy(),
        execution="probe",
        images=sequence.images[: len(in_prompt)],
        image_starts=sequence.image_starts[: len(in_prompt)],
    )
