"""The critic's loss, and generalised advantages from its values."""

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
    """Advantages `[R]` of one response (GAE, https://arxiv.org/abs/1506.02438); returns are these + values.

    With d[t] = r[t] + gamma·V[t + 1] - V[t] they are the sums of d discounted by gamma·lambd. `after` is the
    value that follows the last token.
    """
    following = np.append(values[1:], after)[: len(values)]
    return discounted_sums(rewards + gamma * following - values, gamma * lambd)


def clipped_value_loss(values: Any, old_values: Any, returns: Any, clip: float) -> tuple[Any, Any]:
    """max((v within old ± clip - R)², (v - R)²), and which values moved by more than clip; `[T]` tensors."""
    moved = values - old_values
    near = old_values + moved.clamp(-clip, clip)
    loss = (values - returns).square().maximum((near - returns).square())
    return loss, (moved.abs() > clip).to(loss.dtype).detach()
