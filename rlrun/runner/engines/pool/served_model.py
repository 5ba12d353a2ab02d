"""A teacher or a reference that engines serve: its log-probs of the policy's samples."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.prompts.shared_vocabulary import known_tokens


class ServedModel:
    """Asks a pool of engines whose model stays as it is."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    async def log_probs(self, sequences: Sequence[TrainSequence]) -> list[NDArray[np.float32]]:
        """`[R]` log-probs of each sequence's response, at temperature 1."""
        vocabulary = self._pool.vocabulary
        found = await self._pool.score([known_tokens(one.tokens, vocabulary) for one in sequences])
        # entry t is of token t + 1
        return [
            values[sequence.prompt_length - 1 :] for values, sequence in zip(found, sequences, strict=True)
        ]
