"""Attention of every class of shape after other oneDNN work; prints what the preloaded library counted."""

import ctypes
import itertools
import json

import torch

from rlrun.runner.kernels.operators import set_order
from rlrun.runner.trainer.ops.attention import packed_attention
from tests.runner.trainer.ops.test_ops import agree, dense_attention, leaf

LENGTHS = ((16, 24, 32), (32, 64), (1, 33, 70))
WIDTHS = (8, 16, 20, 32, 64, 128)
HEADS = ((4, 2), (3, 3))
WINDOWS = (None, 40)


def attend(lengths, width, heads, window):
    """Hold outputs and gradients to float64."""
    (queries, keys), tokens, scale = heads, sum(lengths), width**-0.5
    agree(
        lambda q, k, v: packed_attention(q, k, v, lengths, scale, window),
        lambda q, k, v: dense_attention(q, k, v, lengths, scale, window),
        [leaf(tokens, queries, width), leaf(tokens, keys, width), leaf(tokens, keys, width)],
        torch.bfloat16,
    )


def main():
    torch.manual_seed(0)
    set_order(value=False)  # forward passes in order do not use the registers
    torch.set_num_threads(2)
    linear = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    counter, unreleased = ctypes.CDLL(None), []
    for shape in itertools.product(LENGTHS, WIDTHS, HEADS, WINDOWS):
        for _ in range(2):
            linear(torch.randn(48, 64, dtype=torch.bfloat16)).sum().backward()
            attend(*shape)
            unreleased.append(counter.num_unreleased())
    print(json.dumps({"unreleased": max(unreleased), "products": counter.num_products()}))


if __name__ == "__main__":
    main()
