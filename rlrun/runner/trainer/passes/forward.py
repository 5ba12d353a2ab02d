"""Forward passes without gradients: numbers of each response token."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import Output, TrainSequence
from rlrun.runner.trainer.passes.packed_model import PackedModel, Routes
from rlrun.runner.trainer.transfers import wait

Sequences = Mapping[int, TrainSequence] | Sequence[TrainSequence]


def response_values(
    model: PackedModel, sequences: Sequences, batches: Sequence[Sequence[int]], name: Output = "log_probs"
) -> dict[int, NDArray[np.float32]]:
    """Returns `[R]` numbers of each sequence in the micro-batches, by index; of a critic `[R + 1]` values.

    Empty on ranks without a pipeline's last stage.
    """
    return response_outputs(model, sequences, batches, [name])[name]


def response_outputs(
    model: PackedModel,
    sequences: Sequences,
    batches: Sequence[Sequence[int]],
    names: Sequence[Output],
    routes: Routes | None = None,
) -> dict[Output, dict[int, NDArray[np.float32]]]:
    """As `response_values`, of each name; `routes` is filled as by `PackedModel.outputs`."""
    results = model.outputs([[sequences[i] for i in members] for members in batches], names, routes)
    wait(model.device)
    tables = {
        i: table.numpy()
        for members, of_batch in zip(batches, results, strict=False)
        for i, table in zip(members, of_batch, strict=True)
    }
    return {name: {i: table[row] for i, table in tables.items()} for row, name in enumerate(names)}
