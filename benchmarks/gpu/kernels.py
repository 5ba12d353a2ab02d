"""Packed attention as the trainer calls it, in bfloat16, against dense attention in float32: values and
gradients, with and without a window and sinks.
"""

from collections.abc import Mapping
from functools import partial

import torch

from benchmarks.gpu.models import DEVICE
from benchmarks.gpu.results import Case, Goal, Measurement
from rlrun.runner.trainer.cpu_ops.attention import cut_attention
from rlrun.runner.trainer.model.attention import AttentionSettings, Documents, packed_attention

LENGTHS = [70, 1, 129, 40]
HEADS, KEY_HEADS, WIDTH = 8, 2, 64
TOLERANCE = 0.03
"""Of the largest value: bfloat16 has 8 bits, and a gradient sums over many tokens."""


def attention(window: int | None, sinks: bool) -> Measurement:
    torch.manual_seed(0)
    tensors = [
        torch.randn(sum(LENGTHS), heads, WIDTH, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    if sinks:
        tensors.append(torch.randn(HEADS, device=DEVICE, requires_grad=True))
    wide = [tensor.detach().float().requires_grad_() for tensor in tensors]
    scale = WIDTH**-0.5
    output = packed_attention(
        *tensors[:3],
        Documents.of(LENGTHS, DEVICE),
        AttentionSettings(scale, window, tensors[3] if sinks else None),
    )
    expected = cut_attention(*wide[:3], LENGTHS, LENGTHS, scale, window, wide[3] if sinks else None)
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
}
