"""A teacher or reference that engines serve: computes its log-probs of the policy's samples."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import TrainSequence, TrainStep
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.prompts.shared_vocabulary import known_tokens


class ServedModel:
    """A frozen model, served by a pool of engines."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    async def log_probs(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep] | None = None
    ) -> list[NDArray[np.float32]]:
        """Returns log-probs `[R]` of each sequence's response, at temperature 1. Does not use `steps`."""
        vocabulary = self._pool.vocabulary
        scores = await self._pool.score([known_tokens(sequence.tokens, vocabulary) for sequence in sequences])
        # A pool's entry t is the log-prob of token t + 1, so the response begins at prompt_length - 1.
        return [
            log_probs[sequence.prompt_length - 1 :]
            for log_probs, sequence in zip(scores, sequences, strict=True)
        ]
