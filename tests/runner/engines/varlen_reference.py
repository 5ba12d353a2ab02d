"""torch's `varlen_attn` in plain torch, for any device and dtype, with the checks that its kernels make.

Only what the native engine uses: https://docs.pytorch.org/docs/stable/nn.attention.varlen.html
"""

from itertools import pairwise

import torch


def varlen_attention(  # noqa: PLR0917 (the signature is that of `flash_ops.varlen_attn`)
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    with_lse: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Returns the attention `[T, heads, D]`, and `with_lse` its log-sum-exps `[heads, T]` as well."""
    assert num_splits == 1, "FlashAttention 2 gives NaN at times where it chooses the splits of pages"
    assert cu_seq_k is not None, "FlashAttention 2 needs it"
    heads, kv_heads = query.shape[1], key.shape[-2]
    assert enable_gqa or heads == kv_heads
    assert not with_lse or max_q > 1 or heads == kv_heads, "log-sum-exps would be in another order"
    ends, key_ends = _checked_ends(cu_seq_q, max_q), _checked_ends(cu_seq_k, max_k)
    assert len(ends) == len(key_ends)
    assert ends[-1] <= len(query)
    if block_table is not None:
        assert seqused_k is not None
        _check_pages(key, value, seqused_k, block_table)
        assert len(seqused_k) == len(ends) - 1
        assert seqused_k.max() <= max_k
    out = torch.zeros_like(query)
    lse = torch.full((heads, len(query)), float("nan"))
    for number, (start, end) in enumerate(pairwise(ends)):
        if block_table is None:
            keys, values = (part[key_ends[number] : key_ends[number + 1]] for part in (key, value))
        else:
            used, table = int(seqused_k[number]), block_table[number].long()
            keys, values = (part[table].flatten(0, 1)[:used] for part in (key, value))
        keys, values = (part.repeat_interleave(heads // kv_heads, 1).double() for part in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query[start:end].double(), keys) / query.shape[-1] ** 0.5
        if window_size == (-1, 0):
            later = torch.ones(scores.shape[1:]).triu(scores.shape[2] - scores.shape[1] + 1).bool()
            scores = scores.masked_fill(later, float("-inf"))
        else:
            assert window_size == (-1, -1)
        out[start:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(query.dtype)
        lse[:, start:end] = scores.logsumexp(-1)
    return (out, lse) if with_lse else out


def _checked_ends(ends: torch.Tensor, most: int) -> list[int]:
    assert ends.dtype == torch.int32
    assert ends.is_contiguous()
    numbers: list[int] = ends.tolist()
    lengths = [end - start for start, end in pairwise(numbers)]
    assert numbers[0] == 0
    assert min(lengths) > 0
    assert max(lengths) <= most
    return numbers


def _check_pages(key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor) -> None:
    assert key.shape == value.shape
    assert key.dim() == 4
    assert lengths.dtype == table.dtype == torch.int32
    assert lengths.shape == table.shape[:1]
    assert lengths.min() > 0
    assert lengths.max() <= table.shape[1] * key.shape[1]
    assert table.stride(-1) == 1
    assert table.min() >= 0
    assert table.max() < len(key)
