"""A sample as a teacher with a tokenizer of its own reads it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import TrainSequence

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reading:
    """A sample in the teacher's tokens, S of a response for the policy's R."""

    sequence: TrainSequence
    """The teacher's tokens, `[P' + S]`."""
    positions: NDArray[np.int32]
    """`[R]` the teacher's position that has read the same text as the policy's; -1: none."""
    is_same_token: NDArray[np.bool_]
    """`[R]` whether the response's next token is the same one in both."""

    def sampled_log_probs(self, own: Array, teacher: Array) -> Array:
        """Returns `[R]` the teacher's log-probs `[S]` of the sampled tokens that it reads as one token too,
        and the policy's `own` log-probs of the others, whose distance is 0.
        """
        result = own.copy()
        result[self.is_same_token] = teacher[self.positions[self.is_same_token]]
        return result
