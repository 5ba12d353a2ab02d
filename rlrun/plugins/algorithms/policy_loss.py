"""Losses of the ratio between policy and old policy; `[T]` tensors, unmasked and unreduced."""

from typing import Any

from rlrun.plugins.types import LossInputs


def clip_loss(ratio: Any, advantages: Any, low: float, high: float, dual: float | None) -> tuple[Any, Any]:
    """PPO's clipped loss (https://arxiv.org/abs/1707.06347), and which tokens the clipping changes.

    The ratio stays within `[1 - low, 1 + high]`. With `dual` c > 1 the loss where A < 0 is at most -c·A
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
    """REINFORCE weighted by the clipped, detached ratio (CISPO, https://arxiv.org/abs/2506.13585).

    Also which tokens the clipping changes.
    """
    ratio = (log_probs - old_log_probs).exp().detach()
    weight = ratio.clamp(1 - low, 1 + high)
    return -weight * advantages * log_probs, (weight != ratio).to(ratio.dtype)


def mean_divergence(inputs: LossInputs, earlier: Any) -> Any:
    """Returns `[B]` the mean of earlier - new log-probs over each sample's trained tokens, with gradient.

    `earlier` `[T]`: the log-probs of the policy that is compared with the new one.
    """
    total = inputs.sample_sum((earlier - inputs.log_probs) * inputs.mask)
    return total / inputs.sample_sum(inputs.mask).clamp(min=1)
