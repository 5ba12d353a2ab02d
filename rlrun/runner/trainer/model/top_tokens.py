"""The teacher's k most probable tokens, and the policy's divergence from them, a chunk of logits at a time.

    teacher's logits ──▶ ids and log-probs of k tokens, log-prob of all others ─┐
    policy's logits  ──▶ log-probs of the same tokens, and of all others ───────┴▶ divergence, its gradient

Distributions are over the whole vocabulary, whatever sampling mask a token was drawn with. With tensor
parallelism each rank holds a slice of the vocabulary; only k candidates, sums and log-probs of the k tokens
travel between ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from rlrun.runner.trainer.model.masked_logits import EXCLUDED
from rlrun.specs.derived.compared_tokens import vocabulary_problem
from rlrun.specs.needs import LEAST_REST, Needs
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the policy's distribution is compared with the teacher's (rlrun.specs.needs.Divergence)."""

    distance: Callable[[Any, Any], Any]
    top_k: int
    temperature: float
    vocabulary: int
    """The number of the policy's tokens. A teacher's embedding may have more, which pad it."""


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The teacher's k most probable tokens at each of R positions."""

    ids: torch.Tensor
    """`[R, k]` int64; -1: a token that the policy does not have, which is no outcome."""
    log_probs: torch.Tensor
    """`[R, k + 1]` float32; the last column is the log-prob of all other tokens together."""

    def take(self, rows: slice | torch.Tensor) -> "TopTokens":
        """Returns those of some of the positions."""
        return TopTokens(self.ids[rows], self.log_probs[rows])


def comparison_of(spec: Spec, needs: Needs, vocabulary: int) -> Comparison | None:
    """Returns how the policy, with its vocabulary, is compared with the teacher's distribution; None: not.

    Raises ValueError if more tokens would be compared than there are.
    """
    if (divergence := needs.divergence) is None:
        return None
    if problem := vocabulary_problem(needs, vocabulary):
        raise ValueError(f"top_k of the algorithm {problem}: lower it")
    temperature = spec.rollout.temperature if divergence.temperature is None else divergence.temperature
    return Comparison(divergence.distance, divergence.top_k, temperature, vocabulary)


def top_tokens(logits: torch.Tensor, asked: Comparison, group: dist.ProcessGroup | None) -> TopTokens:
    """Returns the k most probable of the policy's tokens by a teacher's logits `[r, V]`.

    The teacher's probabilities of the policy's tokens sum to 1: tokens that only pad its embedding do not
    count.
    """
    z = _scaled(logits, asked.temperature)
    width = z.shape[1]
    first = 0 if group is None else dist.get_rank(group) * width
    z[:, max(asked.vocabulary - first, 0) :] = EXCLUDED
    values, columns = z.topk(min(asked.top_k, width), dim=1)
    ids = columns + first
    if group is not None:
        values, ids = (_gathered(each, group) for each in (values, ids))
        values, order = values.topk(asked.top_k, dim=1)
        ids = ids.gather(1, order)
    log_probs, _ = _log_probs_at_(z, ids, group)
    return TopTokens(ids, log_probs)


def distances(
    logits: torch.Tensor, teacher: TopTokens, asked: Comparison, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Returns `[r]` the policy's divergences from the teacher, by the policy's logits `[r, V]`."""
    log_probs, _ = _log_probs_at_(_scaled(logits, asked.temperature), teacher.ids, group)
    result: torch.Tensor = asked.distance(log_probs, teacher.log_probs.to(log_probs.dtype))
    return result


def distance_gradients(
    logits: torch.Tensor,
    teacher: TopTokens,
    asked: Comparison,
    grad: torch.Tensor,
    group: dist.ProcessGroup | None,
) -> torch.Tensor:
    """Returns the loss's gradient `[r, V]` for the policy's logits, from its gradient `[r]` for the
    divergences.

    With g_j the gradient for the log-prob of the j-th token, g_0 that of all others together, whose
    probability is S, and G their sum: g_j - p_j · G at the j-th token, p_v · (g_0 / S - G) elsewhere.
    """
    z = _scaled(logits, asked.temperature)
    log_probs, total = _log_probs_at_(z, teacher.ids, group)
    with torch.enable_grad():
        policy = log_probs.requires_grad_()
        divergence = asked.distance(policy, teacher.log_probs.to(policy.dtype))
        [gradients] = torch.autograd.grad(divergence, policy, grad)
    log_probs = log_probs.detach()
    rest, sums = log_probs[:, -1:], gradients.sum(1, keepdim=True)
    of_others = gradients[:, -1:] * (rest > LEAST_REST)
    at_tokens = gradients[:, :-1] - log_probs[:, :-1].exp() * sums
    # z of the k tokens is excluded, so that these are 0 there
    result = z.sub_(total[:, None]).exp_().mul_(of_others * (-rest).exp() - sums)
    columns, ours = _local(teacher.ids, result.shape[1], group)
    return result.scatter_add_(1, columns, at_tokens * ours).div_(asked.temperature)


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns a copy of the logits in float32, divided by the temperature."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True).div_(temperature)


def _log_probs_at_(
    z: torch.Tensor, ids: torch.Tensor, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `[r, k + 1]` log-probs of the tokens and of all others together, and `[r]` log-sum-exps.

    Excludes the tokens from z `[r, V]`, so that the probability of the others is a sum of its own: a
    difference from 1 would have no correct digit where it is small.
    """
    columns, ours = _local(ids, z.shape[1], group)
    chosen = z.gather(1, columns) * ours
    # tokens of other ranks' slices have a column that may belong to one of this slice: the least value wins
    z.scatter_reduce_(1, columns, torch.where(ours, EXCLUDED, torch.inf).to(z.dtype), "amin")
    rest = z.logsumexp(1)
    if group is not None:
        dist.all_reduce(chosen, dist.ReduceOp.SUM, group)
    is_none = ids < 0
    chosen = chosen.masked_fill(is_none, EXCLUDED)
    if group is not None:
        rest = _gathered(rest[:, None], group).logsumexp(1)
    total = rest.logaddexp(chosen.logsumexp(1))
    rest = (rest - total).clamp(min=LEAST_REST)
    # an outcome that is none has the same log-prob in both models, so that no divergence changes by it
    at_ids = (chosen - total[:, None]).masked_fill(is_none, LEAST_REST)
    return torch.cat((at_ids, rest[:, None]), 1), total


def _local(
    ids: torch.Tensor, width: int, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids as columns of this rank's slice of the vocabulary, and whether they are in it."""
    columns = ids if group is None else ids - dist.get_rank(group) * width
    ours = (columns >= 0) & (columns < width)
    return columns.clamp(0, width - 1), ours


def _gathered(values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the columns `[r, n]` of all tensor-parallel ranks, side by side."""
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, values.contiguous(), group)
    return torch.cat(parts, 1)
