"""Finds the tokens that lower the policy's entropy most: those whose log-prob and advantage are both far
above the step's mean (https://arxiv.org/abs/2505.22617).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.shaping import trained_mask
from rlrun.plugins.types import Group, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlrun.plugins.algorithms.advantages import Array, Scores
else:
    from rlrun.plugins import lazy_numpy as np


def token_covariances(
    groups: Sequence[Group], advantages: Sequence[Array]
) -> tuple[Scores, NDArray[np.bool_]]:
    """Returns (log-prob - mean) · (advantage - mean) of each token of the step, and which tokens are trained.

    The means are over the trained tokens of the step, and the log-probs are the policy's from before the
    update. Both arrays hold the tokens of all samples, one after another.
    """
    samples = [sample for group in groups for sample in group.samples]
    trained = np.concatenate([trained_mask(sample) for sample in samples]) > 0
    log_probs = np.concatenate([_policy_log_probs(sample) for sample in samples])
    values = np.concatenate(list(advantages)).astype(np.float64)
    covariances: Scores = _centred(log_probs, trained) * _centred(values, trained)
    return covariances, trained


def mark_tokens(chosen: NDArray[np.intp], advantages: Sequence[Array]) -> list[Array]:
    """Returns 1 on the tokens at these places among the tokens of all samples, and 0 elsewhere."""
    ends = np.cumsum([len(array) for array in advantages])
    marks = np.zeros(ends[-1] if len(ends) else 0, np.float32)
    marks[chosen] = 1.0
    return list(np.split(marks, ends[:-1]))


def _policy_log_probs(sample: Sample) -> Scores:
    assert sample.policy_log_probs is not None, "needs.policy_log_probs"
    return sample.policy_log_probs.astype(np.float64)


def _centred(values: Scores, trained: NDArray[np.bool_]) -> Scores:
    return values - values[trained].mean() if trained.any() else values
