"""Verification of n-grams in plain torch: the kernels that SGLang's CPU path calls, and attention for it.

The package imports this module once and has its functions under the names that SGLang imports. Loops over
samples are as slow as they are simple; each function does what the Triton kernel beside its call does.
"""

import ctypes
import sys
from typing import Any

import torch

Tensor = torch.Tensor


def reconstruct_indices_from_tree_mask(  # noqa: PLR0917 (SGLang's order)
    mask: Tensor,
    lengths: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    batch: int,
    count: int,
) -> None:
    """`mask` `[batch, count, count]`: which tokens are ancestors of each."""
    ancestors = mask.view(batch, count, count).bool() & torch.ones(count, count).tril(-1).bool()
    positions.copy_((ancestors.sum(-1) + lengths[:batch, None]).flatten())
    index.copy_(torch.arange(batch * count).view(batch, count))
    next_token.fill_(-1)
    next_sibling.fill_(-1)
    for sample in range(batch):
        parents = [max([-1, *row.nonzero().flatten().tolist()]) for row in ancestors[sample]]
        for child in range(count - 1, 0, -1):
            if (parent := parents[child]) >= 0:
                next_sibling[sample, child] = next_token[sample, parent]
                next_token[sample, parent] = child


def verify_tree_greedy_cpu(  # noqa: PLR0917 (SGLang's order)
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follows each sample's tree along the tokens that the model predicts."""
    targets = target_predict.flatten().tolist()
    for sample in range(len(candidates)):
        last, node, right = int(retrive_index[sample, 0]), 0, 0
        accept_index[sample, 0] = last
        while right < accept_index.shape[1] - 1:
            node = int(retrive_next_token[sample, node])
            while node >= 0 and int(candidates[sample, node]) != targets[last]:
                node = int(retrive_next_sibling[sample, node])
            if node < 0:
                break
            predicts[last] = targets[last]
            right += 1
            last = int(retrive_index[sample, node])
            accept_index[sample, right] = last
        accept_token_num[sample] = right
        predicts[last] = targets[last]


def assign_extend_cache_locs_cpu(  # noqa: PLR0917 (SGLang's order)
    requests: Tensor, table: Tensor, starts: Tensor, ends: Tensor, out: Tensor, pool: int
) -> None:
    """The places of each sample's tokens from its start to its end."""
    rows = zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True)
    places = torch.cat([table[request, start:end] for request, start, end in rows])
    out[: len(places)] = places.to(out.dtype)


def assign_req_to_token_pool_cpu(  # noqa: PLR0917 (SGLang's order)
    requests: Tensor, table: Tensor, starts: Tensor, ends: Tensor, places: Tensor, pool: int
) -> None:
    """Records the places of each sample's tokens from its start to its end."""
    first = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[request, start:end] = places[first : first + end - start].to(table.dtype)
        first += end - start


def fill_accept_out_cache_loc_cpu(index: Tensor, places: Tensor, out: Tensor) -> None:
    """The places of accepted tokens."""
    accepted = places[index[index > -1].long()]
    out[: len(accepted)] = accepted


def copy_all_layer_kv_cache_cpu(pointers: Tensor, strides: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Moves places of the cache in every buffer, which are given by address and bytes per place."""
    for pointer, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + source * stride, stride) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)


def extend_attention_cpu(  # noqa: PLR0917 (SGLang's order)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scale: float,
    value_scale: float,
    table: Tensor,
    requests: Tensor,
    lengths: Tensor,
    new: Tensor,
    starts: Tensor,
    longest: int,
    scale: float,
    cap: float,
    cross: bool,
    window: int,
    encoder: object,
    sinks: object,
    tree: Tensor | None,
    causal: bool,
) -> None:
    """`q`, `out` `[T, heads, D]`; the new tokens' keys and values are in the cache already."""
    sizes = zip(requests.tolist(), lengths.tolist(), new.tolist(), starts.tolist(), strict=True)
    for number, (request, length, count, start) in enumerate(sizes):
        places = table[request, :length].long()
        seen = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        if tree is not None:
            block = slice(number * count * count, (number + 1) * count * count)
            seen[:, length - count :] = tree[block].view(count, count)
        part = slice(start, start + count)
        out[part] = _attend(q[part], keys[places], values[places], seen, scale)


def decode_attention_cpu(  # noqa: PLR0917 (SGLang's order)
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scale: float,
    value_scale: float,
    out: Tensor,
    k: Tensor,
    v: Tensor,
    loc: Tensor,
    logits: Tensor,
    table: Tensor,
    requests: Tensor,
    lengths: Tensor,
    scale: float,
    *_: Any,
) -> None:
    """`q`, `out` `[B, heads, D]`; writes the new tokens' keys and values first."""
    keys[loc] = k.view(-1, *keys.shape[1:])
    values[loc] = v.view(-1, *values.shape[1:])
    for number, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        places = table[request, :length].long()
        seen = torch.ones(1, length, dtype=torch.bool)
        out[number] = _attend(q[number : number + 1], keys[places], values[places], seen, scale)[0]


def _attend(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """`q` `[T, heads, D]`, `keys` and `values` `[N, kv heads, D]`, `seen` `[T, N]`."""
    q, keys, values = (tensor.transpose(0, 1)[None] for tensor in (q, keys, values))
    attended = torch.nn.functional.scaled_dot_product_attention(
        q, keys, values, attn_mask=seen, scale=scale, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


for _name, _function in list(globals().items()):
    if _name.endswith("_attention_cpu"):
        setattr(torch.ops.sgl_kernel, _name, _function)
    elif _name.endswith("_cpu"):
        setattr(sys.modules["sgl_kernel"], _name, _function)
