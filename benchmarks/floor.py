"""What this machine's matrix product can do: the floor that benchmarks compare a step with."""

import time
from collections.abc import Callable

import torch
from torch.nn.functional import linear

Product = Callable[[torch.Tensor, torch.Tensor], object]
Clock = Callable[[], float]


def matmul_rate(
    dtype: torch.dtype, threads: int, size: int = 2048, clock: Clock = time.perf_counter
) -> float:
    """FLOP/s of a product of two square matrices: the best of nine by torch's own choice and by oneDNN.

    torch computes float32 products with MKL, which on AMD reaches half of what oneDNN does.
    """
    torch.set_num_threads(threads)
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    return (
        2 * size**3 / min(_seconds(product, a, b, clock) for product in (linear, _onednn) for _ in range(9))
    )


def _onednn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return product


def _seconds(product: Product, a: torch.Tensor, b: torch.Tensor, clock: Clock) -> float:
    start = clock()
    product(a, b)
    return clock() - start
