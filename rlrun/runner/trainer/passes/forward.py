"""Forward passes without gradients: one number per response token."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.packed_model import PackedModel, Routes
from rlrun.runner.trainer.transfers import wait

Sequences = Mapping[int, TrainSequence] | Sequence[TrainSequence]


def response_values(
    model: PackedModel, sequences: Sequences, batches: Sequence[Sequence[int]], routes: Routes | None = None
) -> dict[int, NDArray[np.float32]]:
    """Returns `[R]` log-probs of each sequence in the micro-batches, by index; of a critic `[R + 1]` values.

    Empty on ranks without a pipeline's last stage. `routes` is filled as by `PackedModel.log_probs`.
    """
    results = model.log_probs([[sequences[i] for i in members] for members in batches], routes)
    wait(model.device)
    return {
        i: values.numpy()
        for members, arrays in zip(batches, results, strict=False)
        for i, values in zip(members, arrays, strict=True)
    }
