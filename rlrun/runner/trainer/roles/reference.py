"""The reference on one rank: earlier weights of the policy, kept in host memory.

They replace the policy's weights while the reference computes, so they take no device memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import MicroBatches, Output
from rlrun.runner.trainer.checkpoints.distributed import load_weights, weights_state
from rlrun.runner.trainer.passes.forward import Sequences
from rlrun.runner.trainer.passes.routing_replay import without_experts
from rlrun.runner.trainer.roles.learner import Learner


class Reference:
    """One rank's share of the reference."""

    def __init__(self, learner: Learner) -> None:
        """Copies the policy's current weights."""
        self._learner = learner
        self._parameters = learner.parameters
        self._weights = self._parameters.host_copy()

    def log_probs(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """Returns `[R]` log-probs of this data rank's sequences by index, at the policy's temperature.

        Only the data-rank leader returns them.
        """
        return self.outputs(sequences, micro_batches, ["log_probs"])["log_probs"]

    def outputs(
        self, sequences: Sequences, micro_batches: MicroBatches, names: Sequence[Output]
    ) -> dict[Output, dict[int, NDArray[Any]]]:
        """As `log_probs`, of each name."""
        with self._parameters.swapped(self._weights):
            return self._learner.current_outputs(without_experts(sequences), micro_batches, names)

    def update(self) -> None:
        """Replaces the weights by the policy's current ones."""
        self._weights = self._parameters.host_copy()

    @contextmanager
    def state(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields the parameters, for a checkpoint; they are valid only within the context."""
        with self._parameters.swapped(self._weights):
            yield weights_state(self._parameters.computing)

    def load(self, folder: Path) -> None:
        """Loads a written `state`, also from another layout."""
        with self._parameters.swapped(self._weights):
            load_weights(folder, self._parameters.computing)
            if self._learner.tied is not None:
                self._learner.tied.copy_weights()
            self._weights = self._parameters.host_copy()
