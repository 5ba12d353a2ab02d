"""One number for each response token of many sequences, without gradients."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.packed_model import PackedModel, Routes

Sequences = Mapping[int, TrainSequence] | Sequence[TrainSequence]


def response_values(
    model: PackedModel, sequences: Sequences, batches: Sequence[Sequence[int]], routes: Routes | None = None
) -> dict[int, NDArray[np.float32]]:
    """`[R]` of each sequence that the micro-batches name, by index: log-probs, or what else the head gives.

    Nothing on ranks without a pipeline's last stage. `routes`: as of `Policy.log_probs`.
    """
    found = model.log_probs([[sequences[i] for i in members] for members in batches], routes)
    return {
        i: values.cpu().numpy()
        for members, parts in zip(batches, found, strict=False)
        for i, values in zip(members, parts, strict=True)
    }
