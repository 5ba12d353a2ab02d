"""Log-probs of response tokens straight from hidden states: the vocabulary head without a tensor of all
logits.

Logits exist for a chunk of tokens at a time, in the forward pass and again in the backward pass. With tensor
parallelism each rank holds a slice of the vocabulary; maxima, sums and targets are reduced, logits never
gathered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rlrun.runner.trainer.compat.modules import Linear
from rlrun.runner.trainer.cpu_ops.softmax import softmax_slopes_, softmax_statistics
from rlrun.runner.trainer.model.masked_logits import Support
from rlrun.runner.trainer.model.wide_products import wide_product

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
    support: Support | None = None
    """The tokens that each row's softmax runs over; None: the whole vocabulary."""


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
        wide: bool = False
        """Logits of half-precision weights and hidden states are float32 (`trainer.head_dtype`)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._wide = config.wide

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies, `[R]` float32, from `[1, T, hidden]` hidden states of packed tokens."""
        hidden, weight, query = self._asked(input)
        apply = _WideLogProbs.apply if self._wide and weight.dtype != torch.float32 else _LogProbs.apply
        outputs: tuple[torch.Tensor, torch.Tensor] = apply(hidden, weight, query, self._group)
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
        ctx.kept = _room(hidden, weight) if any(ctx.needs_input_grad) else None

        def logits(part: slice) -> torch.Tensor:
            return torch.mm(hidden[part], weight.t(), out=None if ctx.kept is None else ctx.kept[part])

        return _log_probs(ctx, (hidden, weight, query, group), logits)

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, entropy_grad: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, *_ = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight)
        kept, ctx.kept = ctx.kept, None
        for part in _chunks(hidden, ctx.query):
            logits = hidden[part] @ weight.t() if kept is None else kept[part]
            slopes = _slopes_(ctx, part, logits, grad, entropy_grad)
            torch.mm(slopes, weight, out=grad_hidden[part])
            grad_weight.addmm_(slopes.t(), hidden[part])
        return grad_hidden, grad_weight, None, None


class _WideLogProbs(torch.autograd.Function):
    """The same with float32 logits, slopes and sums; gradients are rounded once, to the types of what they
    belong to.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        query: HeadQuery,
        group: dist.ProcessGroup | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _log_probs(
            ctx, (hidden, weight, query, group), lambda part: wide_product(hidden[part], weight.t())
        )

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, entropy_grad: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, *_ = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for part in _chunks(hidden, ctx.query):
            logits = wide_product(hidden[part], weight.t())
            slopes = _slopes_(ctx, part, logits, grad, entropy_grad)
            grad_hidden[part] = wide_product(slopes, weight)
            grad_weight += wide_product(slopes.t(), hidden[part])
        return grad_hidden, grad_weight.to(weight.dtype), None, None


def _log_probs(
    ctx: Any,
    inputs: tuple[torch.Tensor, torch.Tensor, HeadQuery, dist.ProcessGroup | None],
    logits: Callable[[slice], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probs and entropies `[R]` from each chunk's logits, and keeps in `ctx` what the backward
    pass needs.
    """
    hidden, weight, query, group = inputs
    local, ours = _local_targets(query.targets, weight.shape[0], group)
    stats = hidden.new_empty((4, len(hidden)), dtype=torch.float32)
    for part in _chunks(hidden, query):
        chunk = _restricted_(logits(part), part, query, group)
        stats[:, part] = softmax_statistics(chunk, local[part], query.temperature)
    log_probs, log_sum, entropy = _combine(stats, ours, group)
    ctx.save_for_backward(hidden, weight, local, ours, log_sum, entropy)
    ctx.query, ctx.group = query, group
    if not query.entropy_grad:
        ctx.mark_non_differentiable(entropy)
    return log_probs, entropy


def _slopes_(
    ctx: Any, part: slice, logits: torch.Tensor, grad: torch.Tensor, entropy_grad: torch.Tensor | None
) -> torch.Tensor:
    """Returns the loss's gradient for a chunk's logits, in their place."""
    _, _, local, ours, log_sum, entropy = ctx.saved_tensors
    if not ctx.query.entropy_grad:
        entropy_grad = None
    return softmax_slopes_(
        _restricted_(logits, part, ctx.query, ctx.group),
        local[part],
        ours=ours[part],
        log_sums=log_sum[part],
        log_prob_slopes=grad[part].contiguous(),
        entropies=None if entropy_grad is None else entropy[part],
        entropy_slopes=None if entropy_grad is None else entropy_grad[part].contiguous(),
        temperature=ctx.query.temperature,
    )


def _chunks(hidden: torch.Tensor, query: HeadQuery) -> Iterator[slice]:
    return (slice(start, start + query.chunk) for start in range(0, len(hidden), query.chunk))


def _restricted_(
    logits: torch.Tensor, part: slice, query: HeadQuery, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Returns a chunk's logits, in place, with all but the candidates of its rows excluded."""
    if query.support is not None:
        first = 0 if group is None else dist.get_rank(group) * logits.shape[1]
        query.support.restrict_(logits, part, first)
    return logits


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
