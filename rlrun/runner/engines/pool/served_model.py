"""A teacher or reference that engines serve: computes its log-probs of the policy's samples.

An engine names the k most probable tokens at each position, and says nothing of the others. The log-prob of
all others together is that of 1 minus the sum of the k probabilities. Float32 log-probs leave an error of
about 1e-7 in this difference, so a remainder below LEAST_REMAINDER counts as that: the divergence is off by
as little where the policy agrees that the others are improbable, and is too small where it does not. (The
trainer's own teachers sum the probabilities of the others, which has no such limit.)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import Output, TrainSequence, TrainStep
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.prompts.shared_vocabulary import known_tokens
from rlrun.specs.needs import LEAST_REST

LEAST_REMAINDER = 1e-6
"""The smallest probability of all tokens that an engine does not name."""


class ServedModel:
    """A frozen model, served by a pool of engines."""

    def __init__(
        self, pool: EnginePool, adapter: str | None = None, *, num_top: int = 0, vocabulary: int = 2**31
    ) -> None:
        """`adapter`: the name of the adapter that makes the pool's model this one; None if it needs none.
        `num_top`: how many of a teacher's most probable tokens `outputs` returns. `vocabulary`: the number of
        the policy's tokens.
        """
        self._pool, self._adapter = pool, adapter
        self._num_top, self._vocabulary = num_top, vocabulary

    async def log_probs(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep] | None = None
    ) -> list[NDArray[np.float32]]:
        """Returns log-probs `[R]` of each sequence's response, at temperature 1. Does not use `steps`."""
        tokens = self._known(sequences)
        images = [sequence.placed_images() for sequence in sequences]
        scores = await self._pool.score(tokens, images if any(images) else (), adapter=self._adapter)
        # A pool's entry t is the log-prob of token t + 1, so the response begins at prompt_length - 1.
        return [
            log_probs[sequence.prompt_length - 1 :]
            for log_probs, sequence in zip(scores, sequences, strict=True)
        ]

    async def outputs(
        self,
        names: Sequence[Output],
        sequences: Sequence[TrainSequence],
        steps: Sequence[TrainStep] | None = None,
    ) -> dict[Output, list[NDArray[np.float32]]]:
        """Returns log-probs, and the most probable tokens if `names` has them, as ranks do. Does not use
        `steps`.

        Raises ValueError for sequences with images, and for tokens that the policy does not have.
        """
        if "top_ids" not in names:
            return {"log_probs": await self.log_probs(sequences)}
        if any(sequence.images for sequence in sequences):
            raise ValueError(
                "engines name a teacher's most probable tokens of texts only, and the rows have images: let "
                "the trainer load the teacher (teacher.path)"
            )
        starts = [sequence.prompt_length - 1 for sequence in sequences]
        num_top = min(self._num_top, self._pool.vocabulary)
        scores = await self._pool.score_top(self._known(sequences), starts, num_top, adapter=self._adapter)
        self._check(max((int(one.top_ids.max(initial=0)) for one in scores), default=0))
        whole = num_top >= min(self._vocabulary, self._pool.vocabulary)
        return {
            "log_probs": [one.log_probs for one in scores],
            "top_ids": [one.top_ids for one in scores],  # type: ignore[misc]
            "top_log_probs": [with_rest(one.top_log_probs, whole=whole) for one in scores],
        }

    def _known(self, sequences: Sequence[TrainSequence]) -> list[NDArray[np.int32]]:
        return [known_tokens(sequence.tokens, self._pool.vocabulary) for sequence in sequences]

    def _check(self, largest: int) -> None:
        if largest >= self._vocabulary:
            raise ValueError(
                f"token {largest} is among the teacher's {self._num_top} most probable ones, and the policy "
                f"has {self._vocabulary} tokens: lower top_k of the algorithm"
            )


def with_rest(top_log_probs: NDArray[np.float32], *, whole: bool) -> NDArray[np.float32]:
    """Returns `[R, k + 1]`: the log-probs `[R, k]`, and that of all other tokens together. `whole`: there are
    no others.
    """
    remainder = 1 - np.exp(top_log_probs.astype(np.float64)).sum(1, keepdims=True)
    rest = np.log(np.maximum(remainder, LEAST_REMAINDER))
    rest = np.full_like(rest, LEAST_REST) if whole else rest
    return np.concatenate([top_log_probs, rest.astype(np.float32)], 1)
