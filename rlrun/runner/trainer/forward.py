"""One number for each response token of many sequences, without gradients."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.carriers import TrainSequence
from rlrun.runner.trainer.batch import make_pack
from rlrun.runner.trainer.policy import Policy

Sequences = Mapping[int, TrainSequence] | Sequence[TrainSequence]


@torch.no_grad()
def response_values(
    model: Policy, sequences: Sequences, batches: Sequence[Sequence[int]], device: torch.device
) -> dict[int, NDArray[np.float32]]:
    """`[R]` of each sequence that the micro-batches name, by index: log-probs, or a value head's values."""
    results: dict[int, NDArray[np.float32]] = {}
    for members in batches:
        pack = make_pack([sequences[i] for i in members], model.multiple, device)
        values, _ = model(pack)
        parts = values.cpu().split(pack.response_lengths)
        results |= {i: part.numpy() for i, part in zip(members, parts, strict=True)}
    return results
