"""Policy losses that depend on the ratio of the new to the old policy.

All arguments and results are `[T]` tensors over the response tokens of a micro-batch, neither masked nor
reduced.
"""

from typing import Any

from rlrun.plugins.types import LossInputs


def clip_loss(ratio: Any, advantages: Any, low: float, high: float, dual: float | None) -> tuple[Any, Any]:
    """Returns PPO's clipped loss (https://arxiv.org/abs/1707.06347), and 1 on tokens where clipping changed
    it.

    The ratio is kept within `[1 - low, 1 + high]`. With `dual` c > 1, the loss where A < 0 is at most -c·A
    (https://arxiv.org/abs/1912.09729).
    """
    plain = -ratio * advantages
    bounded = -ratio.clamp(1 - low, 1 + high) * advantages
    loss = plain.maximum(bounded)
    if dual is not None:
        loss = loss.where(advantages >= 0, loss.minimum(-dual * advantages))
    return loss, (bounded > plain).to(plain.dtype).detach()


def cispo_loss(
    log_probs: Any, old_log_probs: Any, advantages: Any, low: float, high: float
) -> tuple[Any, Any]:
    """Returns CISPO's loss (https://arxiv.org/abs/2506.13585), and 1 on tokens where clipping changed the
    weight.

    It is REINFORCE weighted by the clipped ratio, which is detached: the gradient only flows through
    `log_probs`.
    """
    ratio = (log_probs - old_log_probs).exp().detach()
    weight = ratio.clamp(1 - low, 1 + high)
    return -weight * advantages * log_probs, (weight != ratio).to(ratio.dtype)


def mean_divergence(inputs: LossInputs, earlier: Any) -> Any:
    """Returns `[B]` the mean of earlier - new log-probs over each sample's trained tokens, with gradient.

    `earlier` `[T]` holds the log-probs of the policy that is compared with the new one.
    """
    total = inputs.sample_sum((earlier - inputs.log_probs) * inputs.mask)
    return total / inputs.sample_sum(inputs.mask).clamp(min=1)
