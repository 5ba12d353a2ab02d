"""Draws tokens with counter-based randomness, by inverting the cumulative distribution.

The random number of a token is a hash of the sample's seed and the token's position in the sequence: it does
not depend on the samples that run beside it, nor on timing. Log-probs are those of the whole distribution at
the sampling temperature, also where top-k and top-p limit it; `sample_with_masks` also returns the log-probs
over the tokens within the limits. `kernels/sampling.h` computes the same in C++.
"""

from typing import NamedTuple

import torch

GROUP = 64
"""Tokens of the vocabulary whose weights are summed together: a draw finds its group first, then its
token."""

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_MIX = (-4658895280553007687, -7723592293110705685)  # splitmix64 (Steele, Lea, Flood 2014)


class Limits(NamedTuple):
    """Limits what B rows may draw: the `top_ks` likeliest tokens, as long as those before have less than
    `top_ps` of the probability.
    """

    top_ps: torch.Tensor
    """`[B]` float32; 1: no limit."""
    top_ks: torch.Tensor
    """`[B]` int64; below 1: no limit."""
    forbidden: torch.Tensor
    """`[B, V]` bool: excluded beforehand (stop tokens below the minimum length)."""
    ranked: bool = True
    """Whether top-k or top-p limits any row; to look at the tensors would wait for the GPU."""


class Masks(NamedTuple):
    """The tokens that B rows drew from, where top-k or top-p limited them."""

    log_probs: torch.Tensor
    """`[B]` float32 of the drawn tokens, over the tokens that they were drawn from."""
    lengths: torch.Tensor
    """`[B]` int64 number of those tokens; 0: neither top-k nor top-p limited the row."""
    ids: torch.Tensor
    """`[sum of lengths]` int32, row after row, ascending."""


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns a uniform float64 in (0, 1) for each int64 seed and position: splitmix64 of the two."""
    return ((_shift(_hash(_hash(seeds) ^ positions), 11)).double() + 0.5) * 2.0**-53


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    limits: Limits | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws tokens `[B]` int64 from logits `[B, V]`; returns them and their log-probs `[B]` float32.

    Temperature 0 takes the likeliest token and its log-prob at temperature 1. Log-probs do not depend on
    `limits`.
    """
    drawn, log_probs, _, _ = _draw(logits, temperatures, seeds, positions, limits)
    return drawn, log_probs


def sample_with_masks(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    limits: Limits,
) -> tuple[torch.Tensor, torch.Tensor, Masks]:
    """As `sample`; also returns the tokens that each was drawn from, at temperature 0 only the likeliest."""
    drawn, log_probs, weights, scaled = _draw(logits, temperatures, seeds, positions, limits)
    limited, greedy = (limits.top_ps < 1) | (limits.top_ks > 0), temperatures == 0
    kept_log_probs = (scaled.double() - _group_sums(weights).sum(-1).log()).float()
    kept_log_probs = torch.where(limited, torch.where(greedy, 0.0, kept_log_probs), log_probs)
    own = torch.zeros_like(weights, dtype=torch.bool).scatter_(1, drawn[:, None], value=True)
    kept = torch.where(greedy[:, None], own, weights > 0) & limited[:, None]
    return drawn, log_probs, Masks(kept_log_probs, kept.sum(-1), kept.nonzero()[:, 1].int())


def _draw(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    limits: Limits | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns tokens and log-probs as `sample` does, and how they were drawn.

    That is the weights `[B, V]` of all tokens, relative to the likeliest token's 1, and the logarithm `[B]`
    of each drawn token's weight.
    """
    greedy = temperatures == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperatures)[:, None]
    peak = scaled.amax(-1, keepdim=True)
    weights = (scaled - peak).exp_()
    log_total = _group_sums(weights).sum(-1).log()
    if limits is not None:
        weights = weights * allowed_tokens(scaled, limits)
    drawn = torch.where(greedy, weights.argmax(-1), _invert_distribution(weights, uniform(seeds, positions)))
    chosen = scaled.gather(1, drawn[:, None])[:, 0] - peak[:, 0]
    return drawn, (chosen.double() - log_total).float(), weights, chosen


def allowed_tokens(scaled: torch.Tensor, limits: Limits) -> torch.Tensor:
    """Returns which tokens `[B, V]` may be drawn, from logits divided by the temperature."""
    top_ps, top_ks, forbidden, ranked = limits
    if not ranked:
        return ~forbidden
    scaled = scaled.masked_fill(forbidden, float("-inf"))
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    mass = ordered.softmax(-1)
    before = mass.cumsum(-1) - mass
    ranks = torch.arange(scaled.shape[1], device=scaled.device)
    limit = torch.where(top_ks > 0, top_ks, scaled.shape[1])
    keep = (before < top_ps[:, None]) & (ranks < limit[:, None]) & (ordered > float("-inf"))
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(1, order, keep)


def _invert_distribution(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Returns the first token whose cumulative weight exceeds the row's draw, never one of weight 0.

    `minimum(last)` catches draws so close to 1 that rounding puts them behind the last token.
    """
    sums = _group_sums(weights)
    cumulative = sums.cumsum(-1)
    target = (draws * cumulative[:, -1])[:, None]
    last = (sums > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    group = torch.searchsorted(cumulative, target, right=True).minimum(last)
    before = cumulative.gather(1, group) - sums.gather(1, group)
    columns = (group * GROUP + torch.arange(GROUP, device=group.device)).clamp_(max=weights.shape[1] - 1)
    inside = torch.arange(GROUP, device=group.device) < weights.shape[1] - group * GROUP
    members = weights.gather(1, columns).double() * inside
    last = (members > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    index = torch.searchsorted(members.cumsum(-1), target - before, right=True).minimum(last)
    return (group * GROUP + index)[:, 0]


def _group_sums(weights: torch.Tensor) -> torch.Tensor:
    """Returns the sum of each group's weights, `[B, ceil(V / GROUP)]` float64."""
    whole = weights.shape[1] // GROUP * GROUP
    sums = weights[:, :whole].unflatten(1, (-1, GROUP)).sum(-1, dtype=torch.float64)
    if whole == weights.shape[1]:
        return sums
    return torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)], 1)


def _hash(values: torch.Tensor) -> torch.Tensor:
    values = values + _GOLDEN
    values = (values ^ _shift(values, 30)) * _MIX[0]
    values = (values ^ _shift(values, 27)) * _MIX[1]
    return values ^ _shift(values, 31)


def _shift(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
