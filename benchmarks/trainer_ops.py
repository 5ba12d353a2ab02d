"""The trainer's CPU operators against plain torch: one operator at a time, and a packed training step.

    OMP_NUM_THREADS=1 python benchmarks/trainer_ops.py [--documents 64] [--repeat 5]

Prints JSON: CPU milliseconds (the best of several, the two sides in turn), and plain torch's time over ours.
Documents are equally long (`fixed`) or lognormal with the same mean (`varied`); a step is the forward and the
backward pass of a Qwen3-like decoder of 5.8M parameters and of its head, which both sides take in chunks.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlrun.runner.trainer.ops import attention, elementwise, softmax

HIDDEN, HEADS, KV_HEADS, WIDTH, INNER, VOCABULARY, LAYERS = 256, 4, 2, 64, 768, 4096, 6
PACK_TOKENS, MEAN_LENGTH, CHUNK, EPS = 4096, 163, 1024, 1e-6


@dataclass(frozen=True)
class Operators:
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rotate: Callable[[Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor, Tensor], Tensor]
    attention: Callable[[Tensor, Tensor, Tensor, Sequence[int], float], Tensor]
    head: Callable[[Tensor, Tensor, Tensor], Tensor]


def plain_rotate(x: Tensor, table: Tensor) -> Tensor:
    cosine, sine = table[:, None, 0].to(x.dtype), table[:, None, 1].to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float
) -> Tensor:
    outputs = []
    for parts in zip(*(x.split(list(lengths)) for x in (query, key, value)), strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in parts)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


class PlainHead(torch.autograd.Function):
    """Log-probs of the targets, with the gradient of their sum computed while the logits are at hand."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        log_probs, dhidden, dweight = _empty_head(hidden, weight)
        for part in _chunks(hidden):
            logits = (hidden[part] @ weight.t()).float().log_softmax(-1)
            target = targets[part, None]
            log_probs[part] = logits.gather(1, target)[:, 0]
            gradients = (
                logits.exp_().neg_().scatter_add_(1, target, torch.ones_like(target, dtype=logits.dtype))
            )
            _head_products(gradients.to(hidden.dtype), hidden[part], weight, dhidden[part], dweight)
        ctx.save_for_backward(dhidden, dweight)
        return log_probs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return *ctx.saved_tensors, None


class FusedHead(PlainHead):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        log_probs, dhidden, dweight = _empty_head(hidden, weight)
        ones = torch.ones(len(hidden))
        for part in _chunks(hidden):
            logits = hidden[part] @ weight.t()
            log_probs[part], log_sums, *_ = softmax.log_softmax(logits, targets[part], 1.0)
            softmax.softmax_gradients_(
                logits,
                targets[part],
                ours=ones[part],
                log_sums=log_sums,
                log_prob_gradients=ones[part],
                entropies=None,
                entropy_gradients=None,
                temperature=1.0,
            )
            _head_products(logits, hidden[part], weight, dhidden[part], dweight)
        ctx.save_for_backward(dhidden, dweight)
        return log_probs


def _chunks(hidden: Tensor) -> list[slice]:
    return [slice(*pair) for pair in pairwise([*range(0, len(hidden), CHUNK), len(hidden)])]


def _empty_head(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (
        hidden.new_empty(len(hidden), dtype=torch.float32),
        torch.empty_like(hidden),
        torch.zeros_like(weight),
    )


def _head_products(
    gradients: Tensor, hidden: Tensor, weight: Tensor, dhidden: Tensor, dweight: Tensor
) -> None:
    torch.mm(gradients, weight, out=dhidden)
    dweight.addmm_(gradients.t(), hidden)


PLAIN = Operators(
    rms_norm=lambda x, weight, eps: functional.rms_norm(x, weight.shape, weight, eps),
    rotate=plain_rotate,
    silu_mul=lambda gate, up: functional.silu(gate) * up,
    attention=plain_attention,
    head=PlainHead.apply,
)
OURS = Operators(
    rms_norm=elementwise.rms_norm,
    rotate=elementwise.rotate,
    silu_mul=elementwise.silu_mul,
    attention=attention.packed_attention,
    head=FusedHead.apply,
)


class Decoder(nn.Module):
    """Qwen3's layers over one pack of documents."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        qkv = (HEADS + 2 * KV_HEADS) * WIDTH
        shapes = [(qkv, HIDDEN), (HIDDEN, HEADS * WIDTH), (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
        norms = [(HIDDEN,), (WIDTH,), (WIDTH,), (HIDDEN,)]

        def draw(shape: tuple[int, ...]) -> nn.Parameter:
            value = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.02
            return nn.Parameter(value.to(dtype))

        self.embedding, self.norm = draw((VOCABULARY, HIDDEN)), draw((HIDDEN,))
        self.layers = nn.ModuleList(nn.ParameterList(map(draw, shapes + norms)) for _ in range(LAYERS))

    def forward(self, tokens: Tensor, lengths: Sequence[int], table: Tensor, ops: Operators) -> Tensor:
        x = functional.embedding(tokens, self.embedding)
        for qkv, out, gate, up, down, norm1, q_norm, k_norm, norm2 in self.layers:
            parts = functional.linear(ops.rms_norm(x, norm1, EPS), qkv).view(len(tokens), -1, WIDTH)
            q, k, v = parts.split((HEADS, KV_HEADS, KV_HEADS), 1)
            q = ops.rotate(ops.rms_norm(q, q_norm, EPS), table)
            k = ops.rotate(ops.rms_norm(k, k_norm, EPS), table)
            attended = ops.attention(q, k, v, lengths, WIDTH**-0.5)
            x = x + functional.linear(attended.flatten(1), out)
            h = ops.rms_norm(x, norm2, EPS)
            x = x + functional.linear(
                ops.silu_mul(functional.linear(h, gate), functional.linear(h, up)), down
            )
        return ops.rms_norm(x, self.norm, EPS)


def documents(count: int, varied: bool) -> list[list[int]]:
    """Packs of document lengths."""
    lengths = [MEAN_LENGTH] * count
    if varied:
        torch.manual_seed(0)
        draws = torch.randn(count).mul(0.8).sub(0.32).exp().mul(MEAN_LENGTH)
        lengths = [max(8, min(1024, int(x))) for x in draws]
    packs: list[list[int]] = [[]]
    for length in lengths:
        if sum(packs[-1]) + length > PACK_TOKENS:
            packs.append([])
        packs[-1].append(length)
    return packs


def rope_table(lengths: Sequence[int]) -> Tensor:
    frequencies = 1e-4 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    angles = torch.outer(torch.cat([torch.arange(length) for length in lengths]).float(), frequencies).repeat(
        1, 2
    )
    return torch.stack((angles.cos(), angles.sin()), 1)


def step(model: Decoder, packs: list[list[int]], ops: Operators) -> dict[str, float]:
    """CPU seconds of forward, head and backward; the head's backward products are in `head`."""
    seconds = {"forward": 0.0, "head": 0.0, "backward": 0.0}
    model.zero_grad()
    for lengths in packs:
        tokens = torch.randint(VOCABULARY, (sum(lengths),))
        table = rope_table(lengths)
        marks = [time.process_time()]
        hidden = model(tokens, lengths, table, ops)
        marks.append(time.process_time())
        log_probs = ops.head(hidden, model.embedding, tokens.roll(-1))
        marks.append(time.process_time())
        log_probs.sum().backward()
        marks.append(time.process_time())
        for name, (start, end) in zip(seconds, pairwise(marks), strict=True):
            seconds[name] += end - start
    return seconds | {"total": sum(seconds.values())}


def operator_cases(packs: list[list[int]], dtype: torch.dtype) -> dict[str, Callable[[Operators], Tensor]]:
    """Each operator over one pack, as a function of who computes it."""
    lengths = packs[0]
    count, table = sum(lengths), rope_table(lengths)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype).requires_grad_()

    x, weight = leaf(count, HIDDEN), leaf(HIDDEN)
    q, k, v = leaf(count, HEADS, WIDTH), leaf(count, KV_HEADS, WIDTH), leaf(count, KV_HEADS, WIDTH)
    gate, up, embedding = leaf(count, INNER), leaf(count, INNER), leaf(VOCABULARY, HIDDEN)
    targets = torch.randint(VOCABULARY, (count,))
    return {
        "rms_norm": lambda ops: ops.rms_norm(x, weight, EPS),
        "rotate": lambda ops: ops.rotate(q, table),
        "silu_mul": lambda ops: ops.silu_mul(gate, up),
        "attention": lambda ops: ops.attention(q, k, v, lengths, WIDTH**-0.5),
        "head": lambda ops: ops.head(x, embedding, targets),
    }


def time_both_ways(case: Callable[[Operators], Tensor], ops: Operators) -> dict[str, float]:
    start = time.process_time()
    out = case(ops)
    middle = time.process_time()
    out.backward(torch.ones_like(out))
    end = time.process_time()
    return {"forward": middle - start, "backward": end - middle, "total": end - start}


def compare(measure: Callable[[Operators], dict[str, float]], repeat: int) -> dict[str, Any]:
    """The best of `repeat` turns for each side, after one to warm up."""
    best: dict[str, dict[str, float]] = {}
    for turn in range(repeat + 1):
        for name, ops in (("plain", PLAIN), ("ours", OURS)):
            times = measure(ops)
            if turn and times["total"] < best.get(name, {"total": math.inf})["total"]:
                best[name] = times
    milliseconds = {
        name: {part: round(1e3 * s, 2) for part, s in times.items()} for name, times in best.items()
    }
    return milliseconds | {"ratio": round(best["plain"]["total"] / best["ours"]["total"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    for dtype in (torch.bfloat16, torch.float32):
        model = Decoder(dtype)
        for shape in ("fixed", "varied"):
            packs = documents(arguments.documents, shape == "varied")
            results = {
                name: compare(lambda ops, case=case: time_both_ways(case, ops), arguments.repeat)
                for name, case in operator_cases(packs, dtype).items()
            }
            results["step"] = compare(
                lambda ops, packs=packs, model=model: step(model, packs, ops), arguments.repeat
            )
            report[f"{dtype}".removeprefix("torch.") + f" {shape}"] = results
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
