"""Attention sinks (gpt-oss): a learned logit for each head joins the softmax, with no value of its own.

A kernel that knows nothing of sinks gives the output and the log-sum-exp of the scores; both follow from
these with the sink counted. Its backward pass, given the new ones, is right for queries, keys and values: the
weights are exp(score - log-sum-exp), and the softmax's slope needs the output alone. (To scale the output
outside of the kernel is not: torch's kernels have no gradient for the log-sum-exp.)
"""

import torch


def with_sinks(
    output: torch.Tensor, log_sums: torch.Tensor, sinks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`[T, N, H]` and `[N, T]` float32, the `[N]` sinks counted."""
    counted = torch.logaddexp(log_sums, sinks.float()[:, None])
    kept = (log_sums - counted).exp().t()[..., None]
    return (output * kept).to(output.dtype), counted


def sink_slopes(
    grad: torch.Tensor, output: torch.Tensor, log_sums: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """`[N]` gradient of the sinks, from that of the output; output and log-sums with the sinks counted."""
    dots = (grad.float() * output.float()).sum(-1)
    weights = (sinks.float()[:, None] - log_sums).exp().t()
    return -(weights * dots).sum(0).to(sinks.dtype)
