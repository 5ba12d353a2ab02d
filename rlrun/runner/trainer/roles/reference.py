"""The reference on one rank: weights that the policy had, in host memory, and in its place while asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import MicroBatches
from rlrun.runner.trainer.checkpoints.distributed import load_weights, weights_state
from rlrun.runner.trainer.passes.forward import Sequences
from rlrun.runner.trainer.passes.routing_replay import without_experts
from rlrun.runner.trainer.roles.learner import Learner


class Reference:
    """Holds one rank's share of the reference."""

    def __init__(self, learner: Learner) -> None:
        """The reference is what the policy is now."""
        self._learner = learner
        self._parameters = learner.parameters
        self._weights = self._parameters.host_copy()

    def log_probs(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """`[R]` log-probs of this data rank's sequences by index, at the policy's sampling temperature.

        From one rank of those that share the data.
        """
        with self._parameters.swapped(self._weights):
            return self._learner.current_log_probs(without_experts(sequences), micro_batches)

    def update(self) -> None:
        """From now on the reference is what the policy is now."""
        self._weights = self._parameters.host_copy()

    @contextmanager
    def state(self) -> Iterator[dict[str, torch.Tensor]]:
        """Its parameters, for a checkpoint; they are only valid meanwhile."""
        with self._parameters.swapped(self._weights):
            yield weights_state(self._parameters.computing)

    def load(self, folder: Path) -> None:
        """Go on from a written `state`, also on another layout."""
        with self._parameters.swapped(self._weights):
            load_weights(folder, self._parameters.computing)
            if self._learner.tied is not None:
                self._learner.tied.copy_weights()
            self._weights = self._parameters.host_copy()
