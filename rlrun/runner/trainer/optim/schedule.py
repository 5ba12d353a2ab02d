"""The learning rate of each optimizer step."""

import math

from rlrun.specs.sections.optimizer import OptimizerSpec


def learning_rate(spec: OptimizerSpec, step: int, total: int) -> float:
    """Returns the learning rate of optimizer step `step` (from 0) of `total`.

    Warm-up rises linearly from 0 and reaches the peak after its number of steps. The schedule then runs until
    `total`, where every schedule except the constant one would arrive at `min_lr_ratio`.
    """
    begin = spec.warmup_of(total)
    if step < begin:
        return spec.lr * (step + 1) / (begin + 1)
    if spec.schedule == "wsd":
        begin = max(begin, total - (spec.decay_steps or -(-total // 10)))
    progress = min(max(step - begin, 0) / max(total - begin, 1), 1.0)
    match spec.schedule:
        case "constant":
            share = 1.0
        case "linear" | "wsd":
            share = 1.0 - progress
        case "cosine":
            share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return spec.lr * (spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * share)
