"""Log-probs of response tokens straight from hidden states: the vocabulary head without a tensor of all
logits.

Logits exist for a chunk of tokens at a time, in the forward pass and again in the backward pass. With tensor
parallelism each rank holds a slice of the vocabulary; maxima, sums and targets are reduced, logits never
gathered.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torchtitan.models.common.linear import Linear


@dataclass(frozen=True, slots=True)
class HeadQuery:
    """Which tokens' log-probs are wanted."""

    rows: torch.Tensor
    """`[R]` int64: packed positions whose hidden state predicts a response token."""
    targets: torch.Tensor
    """`[R]` int64: the tokens they predict."""
    temperature: float
    """Divides the logits."""
    chunk: int
    """Rows whose logits exist at a time."""
    entropy: bool = True
    """Compute the entropy too."""
    entropy_grad: bool = False
    """The entropy takes part in the loss."""


class ResponseHead(Linear):
    """The head of a decoder; set `query` before calling the model."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.query: HeadQuery | None = None
        self._group: dist.ProcessGroup | None = None

    def parallelize(self, parallel_dims: Any) -> None:
        """Remember who holds the other slices of the vocabulary."""
        mesh = parallel_dims.get_optional_mesh("tp")
        self._group = None if mesh is None else mesh.get_group("tp")
        super().parallelize(parallel_dims)

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies, `[R]` float32, from `[1, T, hidden]` hidden states of packed tokens."""
        assert self.query is not None, "set query before calling the model"
        weight = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        hidden = input.flatten(0, 1).index_select(0, self.query.rows)
        outputs: tuple[torch.Tensor, torch.Tensor] = _LogProbs.apply(hidden, weight, self.query, self._group)
        return outputs


class _LogProbs(torch.autograd.Function):
    """Chunked log-softmax at the targets, and entropy, of `hidden @ weight.T / temperature`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        query: HeadQuery,
        group: dist.ProcessGroup | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        local, ours = _local_targets(query.targets, weight.shape[0], group)
        stats = hidden.new_zeros((4, len(hidden)), dtype=torch.float32)  # maximum, sum, target, weighted sum
        for start in range(0, len(hidden), query.chunk):
            part = slice(start, start + query.chunk)
            logits = _logits(hidden[part], weight, query.temperature)
            stats[2, part] = logits.gather(1, local[part, None]).squeeze(1)
            stats[0, part] = maximum = logits.amax(1)
            logits -= maximum[:, None]
            exponentials = logits.exp()
            stats[1, part] = exponentials.sum(1)
            if query.entropy:
                stats[3, part] = exponentials.mul_(logits).sum(1)
        log_probs, log_sum, entropy = _combine(stats, ours, group)
        ctx.save_for_backward(hidden, weight, local, ours, log_sum, entropy)
        ctx.query = query
        if not query.entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, entropy_grad: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, local, ours, log_sum, entropy = ctx.saved_tensors
        query = ctx.query
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight)
        grad = grad / query.temperature
        for start in range(0, len(hidden), query.chunk):
            part = slice(start, start + query.chunk)
            logits = _logits(hidden[part], weight, query.temperature)
            logits -= log_sum[part, None]
            slopes = logits.exp().mul_(-grad[part, None])
            if query.entropy_grad and entropy_grad is not None:
                scale = (entropy_grad[part] / query.temperature)[:, None]
                slopes -= (logits + entropy[part, None]).mul_(logits.exp()).mul_(scale)
            slopes.scatter_add_(1, local[part, None], (grad[part] * ours[part])[:, None])
            slopes = slopes.to(weight.dtype)
            torch.mm(slopes, weight, out=grad_hidden[part])
            grad_weight.addmm_(slopes.t(), hidden[part])
        return grad_hidden, grad_weight, None, None


def _logits(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = (hidden @ weight.t()).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _local_targets(
    targets: torch.Tensor, size: int, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets as rows of this rank's slice of the vocabulary, and 1 where they lie in it (else 0)."""
    if group is None:
        return targets, torch.ones_like(targets, dtype=torch.float32)
    local = targets - dist.get_rank(group) * size
    ours = (local >= 0) & (local < size)
    return local.clamp(0, size - 1), ours.float()


def _combine(
    stats: torch.Tensor, ours: torch.Tensor, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, log of the softmax's denominator, and entropy, from each slice's statistics.

    With s = sum e^(l - m) and w = sum e^(l - m) (l - m): log-sum-exp = m + log s, entropy = log s - w / s.
    """
    maximum, total, target, weighted = stats.unbind()
    if group is not None:
        highest = maximum.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        shift = maximum - highest
        weighted = (weighted + total * shift) * shift.exp()
        sums = torch.stack((total * shift.exp(), target * ours, weighted))
        dist.all_reduce(sums, dist.ReduceOp.SUM, group)
        maximum, (total, target, weighted) = highest, sums.unbind()
    log_total = total.log()
    log_sum = maximum + log_total
    return target - log_sum, log_sum, log_total - weighted / total
