"""The critic's loss, and generalised advantages computed from its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlrun.plugins.algorithms.advantages import discounted_sums

if TYPE_CHECKING:
    import numpy as np

    from rlrun.plugins.algorithms.advantages import Scores
else:
    from rlrun.plugins import lazy_numpy as np


def generalised_advantages(
    rewards: Scores, values: Scores, gamma: float, lambd: float, after: float = 0.0
) -> Scores:
    """Returns the advantages `[R]` of one response (GAE, https://arxiv.org/abs/1506.02438); adding the values
    to them gives the returns.

    They are the sums of d discounted by gamma·lambd, with d[t] = r[t] + gamma·V[t + 1] - V[t]. `after` is the
    value after the last token.
    """
    next_values = np.append(values[1:], after)[: len(values)]
    return discounted_sums(rewards + gamma * next_values - values, gamma * lambd)


def clipped_value_loss(values: Any, old_values: Any, returns: Any, clip: float) -> tuple[Any, Any]:
    """Returns max((v within old ± clip - R)², (v - R)²), and 1 on tokens whose value moved by more than clip.

    All arguments and results are `[T]` tensors.
    """
    moved = values - old_values
    near = old_values + moved.clamp(-clip, clip)
    loss = (values - returns).square().maximum((near - returns).square())
    return loss, (moved.abs() > clip).to(loss.dtype).detach()
