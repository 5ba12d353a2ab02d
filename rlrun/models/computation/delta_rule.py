"""The gated delta rule (arXiv:2412.06464) and its convolution in plain torch, for packed documents.

The trainer and the native engine both compute it here where no kernels run, so that their results agree.
Convolution and state begin at zero in every document.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHUNK = 64
"""Number of tokens that are computed together, as in fla and transformers."""


def document_convolution(x: "torch.Tensor", weight: "torch.Tensor", lengths: Sequence[int]) -> "torch.Tensor":
    """Returns the SiLU of the causal convolution of each channel of `[T, C]` with its taps `[C, K]`."""
    import torch  # here, because everything else in rlrun.models works without torch

    taps = weight.shape[1]
    padded = torch.nn.functional.pad(x, (0, 0, taps - 1, 0))
    starts = torch.tensor([0, *accumulate(lengths)][:-1], device=x.device)
    counts = torch.tensor(list(lengths), device=x.device)
    positions = torch.arange(len(x), device=x.device)
    positions = positions - starts.repeat_interleave(counts, output_size=len(x))
    total = x * weight[:, -1]
    for back in range(1, taps):
        shifted = padded[taps - 1 - back : taps - 1 - back + len(x)]
        total = total + torch.where((positions >= back)[:, None], shifted, 0) * weight[:, -1 - back]
    return torch.nn.functional.silu(total)


def delta_rule(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    decay: "torch.Tensor",
    beta: "torch.Tensor",
    *,
    lengths: Sequence[int],
    before: "torch.Tensor | None" = None,
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Returns outputs `[T, N, V]` and each document's last state `[documents, N, D, V]` in float32.

    `query`, `key`: `[T, K, D]`, where K divides N; `value`: `[T, N, V]`; `decay` (the logarithm of the factor
    of the state) and `beta`: `[T, N]`. `before` `[documents, N, D, V]`: the states that documents continue;
    None: all begin at zero. Computes in float32.

    Every document is cut into chunks of its own. All chunks of all documents are computed together up to the
    scan over states, which handles one chunk of every document at a time.
    """
    import torch

    dtype, heads, dim, width = value.dtype, value.shape[1], key.shape[2], value.shape[2]
    query, key = (unit_length(x, heads) for x in (query, key))
    chunks = [-(-length // CHUNK) for length in lengths]
    firsts = [0, *accumulate(chunks)]
    rows = torch.cat(
        [torch.arange(length) + first * CHUNK for length, first in zip(lengths, firsts, strict=False)]
    ).to(value.device)

    def cut(x: torch.Tensor) -> torch.Tensor:
        """Returns `[chunks, N, CHUNK, ...]`, zeros behind the end of each document."""
        filled = x.new_zeros(firsts[-1] * CHUNK, *x.shape[1:]).index_copy(0, rows, x)
        return filled.unflatten(0, (-1, CHUNK)).transpose(1, 2)

    query, key, value, decay, beta = map(
        cut, (query * dim**-0.5, key, value.float(), decay.float(), beta.float())
    )
    decay = decay.cumsum(-1)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=value.device).triu(1)
    pairs = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, -torch.inf).exp()
    # The updates of a chunk depend on each other; solving a triangular system gives all of them at once.
    scaled_key = key * beta[..., None]
    targets = torch.cat((value * beta[..., None], scaled_key * decay.exp()[..., None]), -1)
    solved = torch.linalg.solve_triangular(
        (scaled_key @ key.mT) * pairs, targets, upper=False, unitriangular=True
    )
    new, old = solved.split((width, dim), -1)
    parts = (
        query * decay.exp()[..., None],
        key * (decay[..., -1:] - decay).exp()[..., None],
        new,
        old,
        (query @ key.mT) * pairs,
        decay[..., -1].exp()[..., None, None],
    )
    outputs, states = _scan(parts, chunks, firsts, before)
    return outputs.transpose(1, 2).flatten(0, 1)[rows].to(dtype), states


def _scan(
    parts: Sequence["torch.Tensor"],
    chunks: Sequence[int],
    firsts: Sequence[int],
    before: "torch.Tensor | None",
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Returns the outputs `[chunks, N, CHUNK, V]` and the documents' last states `[documents, N, D, V]`."""
    import torch

    query, _, new = parts[:3]
    # Longest documents first: those that have ended are the last ones, and drop out.
    order = sorted(range(len(chunks)), key=lambda document: -chunks[document])
    turns = [
        [firsts[document] + turn for document in order if chunks[document] > turn]
        for turn in range(max(chunks))
    ]
    visited = torch.tensor([chunk for turn in turns for chunk in turn], device=new.device)
    # Gathers once and splits: an index within the loop would have a gradient as large as the whole each time.
    pieces = [part[visited].split([len(turn) for turn in turns]) for part in parts]
    if before is None:
        state = new.new_zeros(len(order), query.shape[1], query.shape[3], new.shape[3])
    else:
        state = before[order]
    outputs, ended = [], []
    for queries, keys, news, olds, inner, factors in zip(*pieces, strict=True):
        if len(queries) < len(state):
            state, last = state.split((len(queries), len(state) - len(queries)))
            ended.append(last)
        updates = news - olds @ state
        outputs.append(queries @ state + inner @ updates)
        state = state * factors + keys.mT @ updates
    states = torch.cat([state, *reversed(ended)])
    back = torch.tensor(order, device=new.device).argsort()
    return torch.cat(outputs)[visited.argsort()], states[back]


def delta_step(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    decay: "torch.Tensor",
    beta: "torch.Tensor",
    *,
    state: "torch.Tensor",
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Returns the outputs `[M, N, V]` of one more token of M sequences, and their new states `[M, N, D, V]`.

    Arguments as in `delta_rule`, with a token of each sequence in place of T tokens.
    """
    heads, dim = value.shape[1], key.shape[2]
    query, key = (unit_length(x, heads) for x in (query, key))
    state = state * decay.float().exp()[..., None, None]
    update = (value.float() - (state * key[..., None]).sum(-2)) * beta.float()[..., None]
    state = state + key[..., None] * update[..., None, :]
    return (state * (query * dim**-0.5)[..., None]).sum(-2).to(value.dtype), state


def unit_length(x: "torch.Tensor", heads: int) -> "torch.Tensor":
    """Returns queries or keys `[T, K, D]` scaled to length 1 in float32, and repeated for `heads` heads."""
    import torch

    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)
    return wide.repeat_interleave(heads // x.shape[1], dim=1)


def log_decay(a: "torch.Tensor", a_log: "torch.Tensor", dt_bias: "torch.Tensor") -> "torch.Tensor":
    """Returns the logarithm `[T, N]` of the factor by which each head's state decays, in float32."""
    import torch

    return -a_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
