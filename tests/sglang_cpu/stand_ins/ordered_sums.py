"""Stand-ins for batch-invariant kernels on a CPU, for server and trainer alike.

They sum in float64 and round once, so that no result depends on the order, and thus on the batch. The
kernels of GPUs sum in an order of their own; with these, the tests show that both sides round in the same
places between sums.
"""

from collections.abc import Callable

import numpy as np
import torch


def product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """a · b + bias of matrices, or of batches of them; numpy multiplies, whose operators nothing replaces."""
    assert a.dtype == b.dtype, f"Incompatible dtypes: {a.dtype}, {b.dtype}"  # as SGLang's kernels
    total = torch.from_numpy(np.matmul(a.detach().double().numpy(), b.detach().double().numpy()))
    if bias is not None:
        total += bias.double()
    return total.to(out_dtype or a.dtype)


def product_out(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(product(a, b))


def sum_and_product(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return product(a, b, bias)


def mean(
    input: torch.Tensor, dim: list[int], keepdim: bool = False, dtype: torch.dtype | None = None
) -> torch.Tensor:
    sizes = [input.shape[axis] for axis in dim]
    return (input.double().sum(dim, keepdim) / np.prod(sizes)).to(dtype or input.dtype)


def log_softmax(input: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    wide = input.detach().double()
    wide = wide - wide.amax(dim, keepdim=True)
    return (wide - wide.exp().sum(dim, keepdim=True).log()).to(
        torch.float32 if half_to_float else input.dtype
    )


def attention(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: None = None,
    enable_gqa: bool = False,
    scale: float | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    """scaled_dot_product_attention of `[1, N, Q, H]`; a query sees the keys up to its own."""
    assert attn_mask is None and scale is not None
    repeats = query.shape[1] // key.shape[1] if enable_gqa else 1
    keys, values = (x.detach().double().repeat_interleave(repeats, 1).numpy() for x in (key, value))
    scores = torch.from_numpy(query.detach().double().numpy() @ keys.swapaxes(-1, -2)) * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    weights /= weights.sum(-1, keepdim=True)
    return torch.from_numpy(weights.numpy() @ values).to(query.dtype)


OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "aten::mm": product,
    "aten::mm.out": product_out,
    "aten::addmm": sum_and_product,
    "aten::bmm": product,
    "aten::mean.dim": mean,
    "aten::_log_softmax": log_softmax,
}


def replace_operators() -> torch.library.Library:
    """Replaces torch's operators on the CPU until the result is destroyed (`_destroy`)."""
    library = torch.library.Library("aten", "IMPL")
    for name, function in OPERATORS.items():
        library.impl(name, function, "CPU")
    return library
