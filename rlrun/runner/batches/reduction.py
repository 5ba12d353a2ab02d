"""Computes the weight of each sequence's tokens in the loss of an optimizer step.

The weights hold the global denominators, so that sums over tokens, micro-batches and ranks need no further
division: the result does not depend on the parallel layout, on the micro-batch split, or on the order of the
samples.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Reduction = Literal["per_sample_mean", "per_token", "dr_grpo"]


def token_scales(
    masks: Sequence[NDArray[np.float32]],
    executions: Sequence[str],
    reduction: Reduction,
    max_response_tokens: int,
) -> NDArray[np.float64]:
    """Returns `[N]`, the weight of every unmasked token of each sequence of one optimizer step.

    With N sequences of E executions, loss = sum over i, t of scale[i] * masks[i][t] * token_loss[i][t]:

    - `per_sample_mean`: the mean over an execution's unmasked tokens (all its sequences together), averaged
      over the E executions; an execution without unmasked tokens counts as 0.
    - `per_token`: the mean over all unmasked tokens of the step (DAPO, https://arxiv.org/abs/2503.14476).
    - `dr_grpo`: the sum over unmasked tokens divided by E * `max_response_tokens`
      (https://arxiv.org/abs/2503.20783).
    """
    tokens = np.array([float(mask.sum()) for mask in masks])
    names, execution = np.unique(np.array(executions, dtype=object), return_inverse=True)
    if reduction == "per_token":
        return np.full(len(masks), 1.0 / max(tokens.sum(), 1.0))
    if reduction == "dr_grpo":
        return np.full(len(masks), 1.0 / (max(len(names), 1) * max_response_tokens))
    per_execution = np.bincount(execution, weights=tokens, minlength=len(names))
    scales: NDArray[np.float64] = 1.0 / (np.maximum(per_execution, 1.0)[execution] * max(len(names), 1))
    return scales
