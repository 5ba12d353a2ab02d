"""A trainer of two matrices whose checkpoints are real: torch's writer, as a trainer rank calls it."""

from pathlib import Path
from typing import Any

import torch

from rlrun.converters.folders.checksums import Digests, find_problems
from rlrun.runner.trainer.checkpoints.distributed import load_weights, weights_state, write_state

DRIVER: dict[str, Any] = {"progress": {"step": 4}, "data": {"place": [1, 2, 3]}}


class RealTrainer:
    """A policy and a critic of one matrix each."""

    def __init__(self, fill: float) -> None:
        self.weights = {"w": torch.full((64, 8), fill)}

    async def save(self, folder: Path) -> Digests:
        state = weights_state(self.weights)
        return write_state(folder, state) | write_state(folder / "critic", state)

    async def check(self, folder: Path, digests: Digests) -> dict[str, str]:
        return find_problems(folder, digests)

    async def load(self, folder: Path) -> None:
        load_weights(folder, self.weights)
        load_weights(folder / "critic", self.weights)
