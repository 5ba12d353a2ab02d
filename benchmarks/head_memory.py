"""Peak memory and time of the log-prob head, forward and backward, against all logits at once.

    python benchmarks/head_memory.py [--tokens 512] [--vocabulary 151936] [--hidden 512] [--dtype bfloat16]

Both sides give log-probs of the targets and the entropy of the vocabulary's distribution from the same hidden
states and weight, and the gradient of a loss of both. The plain side is float32 logits and torch's
log-softmax. Peaks are what torch's allocator gave out on top of inputs and weight (on a CPU by its
profiler). Prints JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from peak import peak_bytes

from rlrun.runner.trainer.model.head import HeadQuery, ResponseHead

Pass = Callable[[], tuple[torch.Tensor, torch.Tensor]]


def rlrun_side(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunk: int) -> Pass:
    config = ResponseHead.Config(in_features=hidden.shape[1], out_features=len(weight))
    head = ResponseHead(config).to(weight.device, weight.dtype)
    head.weight.data = weight.data
    rows = torch.arange(len(targets), device=targets.device)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        head.query = HeadQuery(rows, targets, 1.0, chunk, entropy_grad=True)
        log_probs, entropy = head(hidden[None])
        (log_probs.sum() + 0.1 * entropy.sum()).backward()
        head.weight.grad = hidden.grad = None
        return log_probs.detach(), entropy.detach()

    return run


def plain_side(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> Pass:
    def run() -> tuple[torch.Tensor, torch.Tensor]:
        everything = (hidden @ weight.t()).float().log_softmax(-1)
        log_probs = everything.gather(1, targets[:, None])[:, 0]
        entropy = -(everything.exp() * everything).sum(-1)
        (log_probs.sum() + 0.1 * entropy.sum()).backward()
        weight.grad = hidden.grad = None
        return log_probs.detach(), entropy.detach()

    return run


def seconds(run: Pass, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=256, help="trainer.logits_chunk")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = getattr(torch, options.dtype)
    hidden = torch.randn(options.tokens, options.hidden, device=device).to(dtype).requires_grad_()
    weight = (
        (torch.randn(options.vocabulary, options.hidden, device=device) * 0.05).to(dtype).requires_grad_()
    )
    targets = torch.randint(options.vocabulary, (options.tokens,), device=device)
    sides = {
        "rlrun": rlrun_side(hidden, weight, targets, options.chunk),
        "plain": plain_side(hidden, weight, targets),
    }
    result: dict[str, object] = {**vars(options), "device": device.type}
    values = {side: run() for side, run in sides.items()}
    peaks = {side: peak_bytes(run, device) for side, run in sides.items()}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(options.repeat):
        for side, run in sides.items():
            times[side].append(seconds(run, device))
    for side in sides:
        result[side] = {
            "peak_mib": round(peaks[side] / 2**20, 1),
            "seconds": round(statistics.median(times[side]), 3),
        }
    result["memory_ratio"] = round(peaks["plain"] / peaks["rlrun"], 2)
    result["speed_up"] = round(statistics.median(times["plain"]) / statistics.median(times["rlrun"]), 2)
    gaps = [(ours - plain).abs().max() for ours, plain in zip(*values.values(), strict=True)]
    result["largest_difference"] = float(max(gaps))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
