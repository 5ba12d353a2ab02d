"""Attention sinks (gpt-oss): each head has a learned logit that takes part in the softmax, without a value.

A kernel without sinks returns the output and the log-sum-exp of the scores; both can be corrected for the
sink afterwards. Given the corrected ones, its backward pass is right for queries, keys and values: the
weights are exp(score - log-sum-exp), and the softmax's gradient needs only the output. Scaling the output
with autograd instead would be wrong, because torch's kernels have no gradient for the log-sum-exp.
"""

import torch


def with_sinks(
    output: torch.Tensor, log_sums: torch.Tensor, sinks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output `[T, N, H]` and log-sum-exp `[N, T]` float32 with the sinks `[N]` included."""
    total_log_sums = torch.logaddexp(log_sums, sinks.float()[:, None])
    kept = (log_sums - total_log_sums).exp().t()[..., None]
    return (output * kept).to(output.dtype), total_log_sums


def sink_gradients(
    grad: torch.Tensor, output: torch.Tensor, log_sums: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """Returns the gradient of the sinks `[N]`; `output` and `log_sums` include the sinks."""
    dots = (grad.float() * output.float()).sum(-1)
    weights = (sinks.float()[:, None] - log_sums).exp().t()
    return -(weights * dots).sum(0).to(sinks.dtype)
