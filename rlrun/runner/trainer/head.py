"""Log-probs of response tokens straight from hidden states: the vocabulary head without a tensor of all
logits.

Logits exist for a chunk of tokens at a time, in the forward pass and again in the backward pass. With tensor
parallelism each rank holds a slice of the vocabulary; maxima, sums and targets are reduced, logits never
gathered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rlrun.runner.trainer.compat.modules import Linear
from rlrun.runner.trainer.cpu_ops.softmax import softmax_slopes_, softmax_statistics

KEPT_BYTES = 64 * 2**20
"""Half-precision logits of at most this size are kept between the passes rather than computed twice."""


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
    entropy_grad: bool = False
    """The entropy takes part in the loss."""


class Head(Linear):
    """What stands at a decoder's end and looks at some tokens; set `query` before calling the model."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.query: HeadQuery | None = None
        self._group: dist.ProcessGroup | None = None
        """Tensor-parallel ranks, which hold the other parts of the weight."""

    def parallelize(self, parallel_dims: Any) -> None:
        """Remember who holds the other parts."""
        mesh = parallel_dims.get_optional_mesh("tp")
        self._group = None if mesh is None else mesh.get_group("tp")
        super().parallelize(parallel_dims)

    def _asked(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, HeadQuery]:
        """`[R, hidden]` states of the tokens asked for, this rank's part of the weight, and the question."""
        assert self.query is not None, "set query before calling the model"
        weight = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        return input.flatten(0, 1).index_select(0, self.query.rows), weight, self.query


class ResponseHead(Head):
    """The head of a policy, its vocabulary split over tensor-parallel ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        pass

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies, `[R]` float32, from `[1, T, hidden]` hidden states of packed tokens."""
        outputs: tuple[torch.Tensor, torch.Tensor] = _LogProbs.apply(*self._asked(input), self._group)
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
        stats = hidden.new_empty((4, len(hidden)), dtype=torch.float32)
        ctx.kept = _room(hidden, weight) if any(ctx.needs_input_grad) else None
        for part in _chunks(hidden, query):
            logits = torch.mm(hidden[part], weight.t(), out=None if ctx.kept is None else ctx.kept[part])
            stats[:, part] = softmax_statistics(logits, local[part], query.temperature)
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
        if not query.entropy_grad:
            entropy_grad = None
        kept, ctx.kept = ctx.kept, None
        for part in _chunks(hidden, query):
            slopes = softmax_slopes_(
                hidden[part] @ weight.t() if kept is None else kept[part],
                local[part],
                ours=ours[part],
                log_sums=log_sum[part],
                log_prob_slopes=grad[part].contiguous(),
                entropies=None if entropy_grad is None else entropy[part],
                entropy_slopes=None if entropy_grad is None else entropy_grad[part].contiguous(),
                temperature=query.temperature,
            )
            torch.mm(slopes, weight, out=grad_hidden[part])
            grad_weight.addmm_(slopes.t(), hidden[part])
        return grad_hidden, grad_weight, None, None


def _chunks(hidden: torch.Tensor, query: HeadQuery) -> Iterator[slice]:
    return (slice(start, start + query.chunk) for start in range(0, len(hidden), query.chunk))


def _room(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """Memory to keep half-precision logits in for the backward pass; None where it would be much."""
    size = len(hidden) * len(weight) * weight.itemsize
    if weight.dtype == torch.float32 or size > KEPT_BYTES:
        return None
    return hidden.new_empty(len(hidden), len(weight))


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
