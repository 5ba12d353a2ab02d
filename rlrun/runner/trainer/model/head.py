"""The policy's head: computes log-probs of response tokens without a tensor of all logits.

Logits exist for one chunk of tokens at a time, in the forward pass and again in the backward pass. With
tensor parallelism each rank holds a slice of the vocabulary; only maxima, sums and targets are reduced over
ranks, and logits are never gathered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rlrun.runner.trainer.compat.modules import Linear
from rlrun.runner.trainer.model.masked_logits import Support
from rlrun.runner.trainer.model.target import target_log_softmax
from rlrun.runner.trainer.model.top_tokens import (
    Comparison,
    TopTokens,
    distance_gradients,
    distances,
    top_tokens,
)
from rlrun.runner.trainer.ops.products import add_weight_gradient_, linear, ordered_product
from rlrun.runner.trainer.ops.softmax import log_softmax, softmax_gradients_


@dataclass(frozen=True, slots=True)
class HeadQuery:
    """The tokens whose log-probs a head computes."""

    rows: torch.Tensor
    """`[R]` int64 packed positions whose hidden states predict response tokens."""
    targets: torch.Tensor
    """`[R]` int64 tokens that they predict."""
    temperature: float
    """Divides the logits."""
    chunk: int
    """Number of rows whose logits exist at a time."""
    entropy_grad: bool = False
    """The loss depends on the entropy."""
    support: Support | None = None
    """The tokens that each row's softmax is over; None: the whole vocabulary."""
    kept_bytes: int = 0
    """Bytes of half-precision logits that are kept between the passes, the others are computed twice."""
    squares: bool = False
    """Returns the sum of the squared probabilities too, which has no gradient."""
    hits: bool = False
    """Returns 1 where the target is the most probable token, else 0, in place of the entropy."""
    as_target: bool = False
    """Log-probs are rounded as SGLang's sampler rounds them (`target.softmax`)."""
    comparison: Comparison | None = None
    """Asks a teacher for its most probable tokens, or, with `teacher`, the policy for its divergence from
    them."""
    teacher: TopTokens | None = None
    """The teacher's most probable tokens at each of the R rows."""


class Head(Linear):
    """A decoder's last module, which only reads some tokens. Set `query` before calling the model."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.query: HeadQuery | None = None
        self._group: dist.ProcessGroup | None = None
        """The tensor-parallel ranks, each of which holds a slice of the weight."""

    def parallelize(self, parallel_dims: Any) -> None:
        """Remembers the tensor-parallel group, then shards as torchtitan does."""
        mesh = parallel_dims.get_optional_mesh("tp")
        self._group = None if mesh is None else mesh.get_group("tp")
        super().parallelize(parallel_dims)

    def _query_inputs(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, HeadQuery]:
        """Returns the states `[R, hidden]` of the query's tokens, this rank's slice of the weight, and the
        query.
        """
        assert self.query is not None, "set query before calling the model"
        return states_of(input, self.query), self._local_weight, self.query

    @property
    def _local_weight(self) -> torch.Tensor:
        return self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight


def states_of(input: torch.Tensor, query: HeadQuery) -> torch.Tensor:
    """Returns the states `[R, hidden]` of a query's tokens, of all `[1, T, hidden]`."""
    return input.flatten(0, 1).index_select(0, query.rows)


class ResponseHead(Head):
    """The policy's head; tensor-parallel ranks split its vocabulary."""

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        wide: bool = False
        """Logits are float32 even if weights and hidden states are in half precision
        (`trainer.head_dtype`)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._wide = config.wide

    def forward(
        self, input: torch.Tensor, *, mtp: tuple[torch.Tensor, HeadQuery] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Returns log-probs and entropies, `[R]` float32, for `[1, T, hidden]` hidden states of packed
        tokens. Then come what the query asks for besides: the divergences from a teacher, the sums of the
        squared probabilities, a teacher's k + 1 log-probs of its most probable tokens, and their k ids.

        `mtp`: the states of the MTP layer, and a query about them, which adds its log-probs and hits to the
        results. They give the head no gradient.
        """
        hidden, weight, query = self._query_inputs(input)
        apply = _WideLogProbs.apply if self._wide and weight.dtype != torch.float32 else _LogProbs.apply
        outputs: tuple[torch.Tensor, ...] = apply(hidden, weight, query, self._group)
        if mtp is None:
            return outputs
        states, further = mtp
        predicted: tuple[torch.Tensor, ...] = apply(
            states_of(states, further), weight.detach(), further, self._group
        )
        return (*outputs, *predicted)


class _LogProbs(torch.autograd.Function):
    """Chunked log-softmax at the targets, and entropy, of `hidden @ weight.T / temperature`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        query: HeadQuery,
        group: dist.ProcessGroup | None,
    ) -> tuple[torch.Tensor, ...]:
        kept_rows = _kept_rows(hidden, weight, query) if any(ctx.needs_input_grad) else 0
        ctx.kept = {}
        multiply = _product(weight)

        def logits(part: slice) -> torch.Tensor:
            product = multiply(hidden[part])
            if part.start < kept_rows:
                ctx.kept[part.start] = product
            return product

        return _log_probs(ctx, (hidden, weight, query, group), logits)

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, entropy_grad: torch.Tensor | None, *further: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, *_ = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        multiply = _product(weight)
        for part in _chunks(hidden, ctx.query):
            logits = ctx.kept.pop(part.start, None)
            if logits is None:
                logits = multiply(hidden[part])
            gradients = _gradients_(ctx, part, logits, grad, entropy_grad, *further)
            grad_hidden[part] = linear(gradients, weight.t())
            if grad_weight is not None:
                add_weight_gradient_(grad_weight, gradients, hidden[part])
        return grad_hidden, grad_weight, None, None


class _WideLogProbs(torch.autograd.Function):
    """`_LogProbs` with logits, sums and gradients in float32; the results are rounded once, at the end."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        query: HeadQuery,
        group: dist.ProcessGroup | None,
    ) -> tuple[torch.Tensor, ...]:
        multiply = _wide_product(weight)
        return _log_probs(ctx, (hidden, weight, query, group), lambda part: multiply(hidden[part]))

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, entropy_grad: torch.Tensor | None, *further: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, *_ = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        multiply = _wide_product(weight)
        for part in _chunks(hidden, ctx.query):
            logits = multiply(hidden[part])
            gradients = _gradients_(ctx, part, logits, grad, entropy_grad, *further)
            grad_hidden[part] = wide_product(gradients, weight)
            if grad_weight is not None:
                grad_weight += wide_product(gradients.t(), hidden[part])
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None


def _product(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the function from states to logits; it is the same in both passes, and in order as the
    engine's where that is chosen.
    """
    return ordered_product(weight, wide=False) or (lambda states: linear(states, weight))


def _wide_product(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same for logits in float32."""
    return ordered_product(weight, wide=True) or (lambda states: wide_product(states, weight.t()))


def _log_probs(
    ctx: Any,
    inputs: tuple[torch.Tensor, torch.Tensor, HeadQuery, dist.ProcessGroup | None],
    logits: Callable[[slice], torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Returns the head's outputs `[R]` from each chunk's logits, and keeps in `ctx` what the backward pass
    needs.
    """
    hidden, weight, query, group = inputs
    local, ours = _local_targets(query.targets, weight.shape[0], group)
    results = hidden.new_empty((4, len(hidden)), dtype=torch.float32)
    hits = results.new_zeros(len(hidden) if query.hits else 0)
    log_squares = results.new_zeros(len(hidden) if query.squares else 0)
    asked, compared, top = query.comparison, [], []
    softmax = target_log_softmax if query.as_target else log_softmax
    for part in _chunks(hidden, query):
        chunk = logits(part)
        if asked is not None and query.teacher is not None:
            compared.append(distances(chunk, query.teacher.take(part), asked, group))
        elif asked is not None:
            tokens = top_tokens(chunk, asked, group)
            top.append(torch.cat((tokens.log_probs, tokens.ids), 1))
        chunk = _restricted_(chunk, part, query, group)
        if query.hits:
            hits[part] = _most_probable(chunk, local[part], group)
        if query.squares:
            log_squares[part] = (chunk.float() * (2 / query.temperature)).logsumexp(1)
        results[:, part] = softmax(chunk, local[part], query.temperature)
    log_probs, log_sum, entropy = _combine(results, ours, group)
    ctx.save_for_backward(hidden, weight, local, ours, log_sum, entropy)
    ctx.query, ctx.group = query, group
    second = hits if query.hits else entropy
    squares = [_sum_of_squares(log_squares, log_sum, group)] if query.squares else []
    divergences = [torch.cat([log_probs[:0], *compared])] if query.teacher is not None else []
    if asked is not None and query.teacher is None:
        # ids as floats: float32 has every integer up to 2^24, and no vocabulary has as many tokens
        squares += torch.cat([log_probs.new_empty(0, 2 * asked.top_k + 1), *top]).t().unbind()
    ctx.mark_non_differentiable(*squares, *([] if query.entropy_grad else [second]))
    return log_probs, second, *divergences, *squares


def _sum_of_squares(
    log_squares: torch.Tensor, log_sum: torch.Tensor, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Returns the sum of squared probabilities `[R]` over the whole vocabulary, from the log-sum-exp of twice
    the logits of this rank's slice and that of all logits.
    """
    squares = (log_squares - 2 * log_sum).exp()
    if group is not None:
        dist.all_reduce(squares, dist.ReduceOp.SUM, group)
    return squares


def _most_probable(
    logits: torch.Tensor, targets: torch.Tensor, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Returns 1 for each row of logits whose target has the highest one, else 0."""
    assert group is None, "the rules refuse tensor parallelism with an MTP layer"
    return (logits.gather(1, targets[:, None])[:, 0] >= logits.amax(1)).float()


def _gradients_(
    ctx: Any,
    part: slice,
    logits: torch.Tensor,
    grad: torch.Tensor,
    entropy_grad: torch.Tensor | None,
    *further: torch.Tensor | None,
) -> torch.Tensor:
    """Returns the loss's gradient for a chunk's logits, in their place.

    `further`: the gradients of the outputs after the entropies; the first is that of the divergences, if the
    query asks for them.
    """
    query, group = ctx.query, ctx.group
    if query.teacher is None:
        return _softmax_gradients_(ctx, part, logits, grad, entropy_grad)
    assert further[0] is not None, "autograd fills in zeros"
    compared = distance_gradients(logits, query.teacher.take(part), query.comparison, further[0][part], group)
    return _softmax_gradients_(ctx, part, logits, grad, entropy_grad).add_(compared)


def _softmax_gradients_(
    ctx: Any, part: slice, logits: torch.Tensor, grad: torch.Tensor, entropy_grad: torch.Tensor | None
) -> torch.Tensor:
    """Returns the gradient through log-probs and entropies for a chunk's logits, in their place."""
    _, _, local, ours, log_sum, entropy = ctx.saved_tensors
    if not ctx.query.entropy_grad:
        entropy_grad = None
    return softmax_gradients_(
        _restricted_(logits, part, ctx.query, ctx.group),
        local[part],
        ours=ours[part],
        log_sums=log_sum[part],
        log_prob_gradients=grad[part].contiguous(),
        entropies=None if entropy_grad is None else entropy[part],
        entropy_gradients=None if entropy_grad is None else entropy_grad[part].contiguous(),
        temperature=ctx.query.temperature,
    )


def _chunks(hidden: torch.Tensor, query: HeadQuery) -> Iterator[slice]:
    return (slice(start, start + query.chunk) for start in range(0, len(hidden), query.chunk))


def _restricted_(
    logits: torch.Tensor, part: slice, query: HeadQuery, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Excludes all but the candidates from a chunk's logits, in place, and returns them."""
    if query.support is not None:
        if query.teacher is not None:
            logits = logits.clone()  # kept logits are read again for the divergence, which is over all tokens
        first = 0 if group is None else dist.get_rank(group) * logits.shape[1]
        query.support.restrict_(logits, part, first)
    return logits


def _kept_rows(hidden: torch.Tensor, weight: torch.Tensor, query: HeadQuery) -> int:
    """Returns of how many rows the half-precision logits are kept for the backward pass: of all, or of as
    many chunks as fit into the query's bytes.

    Kept logits are those that would be computed again, in the same chunks, so results do not depend on it.
    """
    if weight.dtype == torch.float32:
        return 0
    rows = query.kept_bytes // (len(weight) * weight.itemsize)
    return len(hidden) if rows >= len(hidden) else rows // query.chunk * query.chunk


def _local_targets(
    targets: torch.Tensor, size: int, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns targets as indices into this rank's slice of the vocabulary, and 1 where they are in it (else
    0).
    """
    if group is None:
        return targets, torch.ones_like(targets, dtype=torch.float32)
    local = targets - dist.get_rank(group) * size
    ours = (local >= 0) & (local < size)
    return local.clamp(0, size - 1), ours.float()


def _combine(
    results: torch.Tensor, ours: torch.Tensor, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns log-probs, log-sum-exps and entropies over the whole vocabulary from those of all slices.

    With a slice's log-sum-exp L and entropy H, and s = e^(L - m): log-sum-exp = m + log Σ s, and entropy =
    log Σ s + Σ s (H - L + m) / Σ s.
    """
    log_probs, log_sum, entropy, chosen = map(torch.clone, results)  # FSDP warns of views of one tensor
    if group is None:
        return log_probs, log_sum, entropy
    highest = log_sum.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    below = log_sum - highest
    share = below.exp()
    sums = torch.stack((share, chosen * ours, share * (entropy - below)))
    dist.all_reduce(sums, dist.ReduceOp.SUM, group)
    total, target, weighted = sums.unbind()
    log_total = total.log()
    return target - highest - log_total, highest + log_total, log_total + weighted / total


def wide_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns `left @ right` in float32. `right` is in half precision, `left` too or in float32.

    Products of two half-precision numbers are exact in float32, so only the order of the sum can change the
    result.
    """
    if not left.is_cuda:
        return left.float() @ right.float()
    if left.dtype == right.dtype:
        return torch.mm(left, right, out_dtype=torch.float32)
    # Tensor cores do not take float32; two halves carry 16 of its 24 bits.
    upper, lower = split_in_two(left, right.dtype)
    return wide_product(upper, right) + wide_product(lower, right)


def split_in_two(matrix: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns two matrices of `dtype` whose sum is nearly the float32 `matrix`."""
    upper = matrix.to(dtype)
    return upper, (matrix - upper).to(dtype)
