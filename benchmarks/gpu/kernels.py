"""Packed attention as the trainer calls it, in bfloat16, against dense attention in float32: values and
gradients, with and without a window and sinks, and over trees of sequences that share prefixes.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.models import DEVICE
from benchmarks.gpu.results import Case, Goal, Measurement
from rlrun.runner.batches.prefixes import shared_forest
from rlrun.runner.trainer.model.attention import AttentionSettings, Documents, packed_attention
from rlrun.runner.trainer.ops.attention import cut_attention, tree_attention

LENGTHS = [70, 1, 129, 40]
HEADS, KEY_HEADS, WIDTH = 8, 2, 64
SCALE = WIDTH**-0.5
TOLERANCE = 0.03
"""Of the largest value: bfloat16 has 8 bits, and a gradient sums over many tokens."""


Attention = Callable[..., torch.Tensor]
"""Computes attention from queries, keys, values and perhaps sinks."""


def attention(window: int | None, sinks: bool) -> Measurement:
    def packed(*tensors: torch.Tensor) -> torch.Tensor:
        settings = AttentionSettings(SCALE, window, tensors[3] if sinks else None)
        return packed_attention(*tensors[:3], Documents.of(LENGTHS, DEVICE), settings)

    def dense(*tensors: torch.Tensor) -> torch.Tensor:
        return cut_attention(*tensors[:3], LENGTHS, LENGTHS, SCALE, window, tensors[3] if sinks else None)

    return compare(packed, dense, sum(LENGTHS), sinks=sinks)


def trees() -> Measurement:
    """A group, a tree whose branches branch again, and a sequence alone."""
    rng = np.random.default_rng(0)

    def branch(stem: NDArray[np.int32], tokens: int) -> NDArray[np.int32]:
        return np.concatenate((stem, rng.integers(0, 1000, tokens))).astype(np.int32)

    prompt, opening, alone = (rng.integers(0, 1000, tokens).astype(np.int32) for tokens in (70, 40, 130))
    turn = branch(opening, 64)
    sequences = [branch(prompt, tokens) for tokens in (1, 33, 129, 40)]
    sequences += [branch(turn, 50), branch(turn, 9), branch(opening, 200), alone]
    forest = shared_forest(sequences)

    def packed(*tensors: torch.Tensor) -> torch.Tensor:
        documents = Documents.of(list(forest.trees), DEVICE, forest.ends)
        return packed_attention(*tensors, documents, AttentionSettings(SCALE))

    def dense(*tensors: torch.Tensor) -> torch.Tensor:
        ends = torch.from_numpy(forest.ends).to(DEVICE)
        return tree_attention(*tensors, forest.trees, ends, SCALE, None)

    return compare(packed, dense, len(forest.tokens))


def compare(packed: Attention, dense: Attention, tokens: int, *, sinks: bool = False) -> Measurement:
    """Compares values and gradients of attention in bfloat16 with those of dense attention in float32."""
    torch.manual_seed(0)
    tensors = [
        torch.randn(tokens, heads, WIDTH, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    if sinks:
        tensors.append(torch.randn(HEADS, device=DEVICE, requires_grad=True))
    wide = [tensor.detach().float().requires_grad_() for tensor in tensors]
    output, expected = packed(*tensors), dense(*wide)
    grad = torch.randn_like(output)
    output.backward(grad)
    expected.backward(grad.float())
    pairs = {"output": (output, expected)}
    for name, tensor, reference in zip(("query", "key", "value", "sinks"), tensors, wide, strict=False):
        pairs[f"{name}_gradient"] = tensor.grad, reference.grad
    differences = {name: relative_difference(*pair) for name, pair in pairs.items()}
    worst = max(differences.values())
    return Measurement({"worst": worst, **differences}, (Goal("worst", "<=", TOLERANCE),))


def relative_difference(tensor: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the largest difference, as a share of the largest expected value."""
    return float((tensor.float() - expected.float()).abs().max() / expected.float().abs().max())


CASES: Mapping[str, Case] = {
    "causal": partial(attention, None, False),
    "window": partial(attention, 32, False),
    "sinks": partial(attention, None, True),
    "window and sinks": partial(attention, 32, True),
    "trees": trees,
}
