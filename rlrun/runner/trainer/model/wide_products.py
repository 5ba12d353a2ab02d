"""Products of half-precision matrices in float32, for logits that are not rounded to half precision."""

import torch


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
