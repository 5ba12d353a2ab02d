"""Forward passes without gradients: numbers of each response token."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import Output, TrainSequence
from rlrun.runner.trainer.passes.packed_model import TOP_TOKENS, PackedModel, Routes
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
) -> dict[Output, dict[int, NDArray[Any]]]:
    """As `response_values`, of each name; `routes` is filled as by `PackedModel.outputs`.

    A teacher's most probable tokens are `[R, k]` int32 and their log-probs `[R, k + 1]`.
    """
    results = model.outputs([[sequences[i] for i in members] for members in batches], names, routes)
    wait(model.device)
    tables = {
        i: table.numpy()
        for members, of_batch in zip(batches, results, strict=False)
        for i, table in zip(members, of_batch, strict=True)
    }
    outputs: dict[Output, dict[int, NDArray[Any]]] = {}
    start = 0
    for name in names:
        end = start + model.rows_of(name)
        rows = {i: table[start:end] for i, table in tables.items()}
        outputs[name] = {i: own.T.copy() if name in TOP_TOKENS else own[0] for i, own in rows.items()}
        start = end
    if "top_ids" in outputs:
        outputs["top_ids"] = {i: ids.astype(np.int32) for i, ids in outputs["top_ids"].items()}
    return outputs
