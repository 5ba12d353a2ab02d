"""The vocabulary's softmax over a chunk of logits: its log-probs, and its gradient in place of the
logits.
"""

import torch

from rlrun.runner.kernels.operators import operators
from rlrun.runner.trainer.compat.fusion import fused
from rlrun.runner.trainer.ops.library import serves


def log_softmax(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns `[4, R]` float32 results of z = logits / temperature, for logits `[R, V]` and targets `[R]`.

    They are the targets' log-probs, the log-sum-exps, the entropies, and the targets' z.
    """
    if serves(logits):
        temperatures = logits.new_full((len(logits),), temperature, dtype=torch.float32)
        result: torch.Tensor = operators.log_softmax(logits, targets, temperatures)
        return result
    return _log_softmax_plainly(logits, targets, temperature)


@fused
def _log_softmax_plainly(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    z = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    chosen = z.gather(1, targets[:, None]).squeeze(1)
    maximum = z.amax(1)
    z -= maximum[:, None]
    exponentials = z.exp()
    total = exponentials.sum(1)
    log_total, weighted = total.log(), exponentials.mul_(z).sum(1)
    return torch.stack(
        (chosen - maximum - log_total, maximum + log_total, log_total - weighted / total, chosen)
    )


def softmax_gradients_(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    ours: torch.Tensor,
    log_sums: torch.Tensor,
    log_prob_gradients: torch.Tensor,
    entropies: torch.Tensor | None,
    entropy_gradients: torch.Tensor | None,
    temperature: float,
) -> torch.Tensor:
    """Overwrites logits with the loss's gradient for them, and returns them.

    `log_prob_gradients` and `entropy_gradients` are the loss's gradients for log-probs (z[target] - log_sums)
    and entropies; None: it does not depend on entropies. All are `[R]` float32. `ours` is 0 where the target
    is in another rank's slice of the vocabulary, else 1.
    """
    if serves(logits):
        operators.softmax_gradients_(
            logits, targets, ours, log_sums, log_prob_gradients, entropies, entropy_gradients, temperature
        )
        return logits
    return _softmax_gradients_plainly_(
        logits,
        targets,
        log_prob_gradients / temperature,
        ours,
        log_sums,
        entropies,
        None if entropies is None or entropy_gradients is None else entropy_gradients / temperature,
        temperature,
    )


@fused
def _softmax_gradients_plainly_(  # noqa: PLR0917 (tensors of one row each)
    logits: torch.Tensor,
    targets: torch.Tensor,
    direct: torch.Tensor,
    ours: torch.Tensor,
    log_sums: torch.Tensor,
    entropies: torch.Tensor | None,
    of_entropies: torch.Tensor | None,
    temperature: float,
) -> torch.Tensor:
    """`direct` and `of_entropies`: the gradients of log-probs and entropies, divided by the temperature."""
    # In place: a chunk's logits are the largest tensors of a step, and these are of twice their precision.
    log_probs = logits.to(log_sums.dtype).div_(temperature).sub_(log_sums[:, None])
    if entropies is None or of_entropies is None:
        gradients = log_probs.exp_().mul_(-direct[:, None])
    else:
        probs = log_probs.exp()
        weighted = log_probs.add_(entropies[:, None]).mul_(probs).mul_(of_entropies[:, None])
        gradients = probs.mul_(-direct[:, None]).sub_(weighted)
    at_targets = gradients.gather(1, targets[:, None]) + (direct * ours)[:, None]
    return logits.copy_(gradients).scatter_(1, targets[:, None], at_targets.to(logits.dtype))
