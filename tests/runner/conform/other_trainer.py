"""Another trainer, in plain numpy: it computes GRPO by the formulas of the papers, with one thing done in
another way where a test plants a difference, and dumps its batch.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
END, PAD, VOCABULARY = 2, 0, 12
SAMPLES, GROUPS, LENGTH = 8, 2, 10


@dataclass(frozen=True)
class Trainer:
    """What the trainer does; the defaults are what rlrun does by default."""

    normalize_std: bool = True
    std_divisor: int = 1
    """1 for n - 1, 0 for n."""
    std_epsilon: float = 1e-6
    clip: float = 0.2
    clip_high: float = 0.2
    reduction: str = "per_sample_mean"
    constant: int = LENGTH
    kl: str = "k3"
    kl_coef: float = 0.1
    temperature: float = 1.0
    end_token_in_mask: bool = True
    mask_late: bool = False
    """The mask is that of the token before."""
    padded_left: bool = False
    """The mask is that of left-padded rows, but tokens are padded on the right."""
    mask_only_in_loss: bool = False
    """The dump has the right mask, the loss another."""
    stale: float = 0.3
    """How far the old log-probs are from the trained policy's."""
    micro_batches: int = 1
    loss_scale: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    """What the trainer says that it does."""


def dump(path: Path, trainer: Trainer, *, only: tuple[str, ...] = (), **arrays: Any) -> Path:
    """Writes the batch of a trainer; `only` some of its results, and other `arrays` in place of its own."""
    values = batch_of(trainer)
    results = ("advantages", "ratios", "kl", "token_losses", "loss", "gradients")
    kept = {name: value for name, value in values.items() if not only or name not in results or name in only}
    np.savez_compressed(path, settings=json.dumps(trainer.settings), **{**kept, **arrays})
    return path


def batch_of(trainer: Trainer) -> dict[str, Any]:
    random = np.random.default_rng(5)
    shape = (SAMPLES, LENGTH)
    lengths = random.permutation(np.arange(3, 3 + SAMPLES)).clip(max=LENGTH)
    columns = np.arange(LENGTH)
    tokens = random.integers(3, VOCABULARY, shape)
    tokens[np.arange(SAMPLES), lengths - 1] = END
    tokens[columns >= lengths[:, None]] = PAD
    logits = 2 * random.normal(size=(*shape, VOCABULARY)).astype(np.float32)
    log_probs = chosen(logits / trainer.temperature, tokens)
    old = log_probs + trainer.stale * random.normal(size=shape)
    reference = log_probs + 0.3 * random.normal(size=shape)
    rewards = random.normal(size=SAMPLES)
    groups = np.repeat(np.arange(GROUPS), SAMPLES // GROUPS)

    right = (columns < lengths[:, None]).astype(float)
    mask = right if trainer.end_token_in_mask else right * (columns != lengths[:, None] - 1)
    if trainer.mask_late:
        mask = np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    mask = mask[:, ::-1] if trainer.padded_left else mask
    advantages = np.concatenate([of_group(trainer, own) for own in rewards.reshape(GROUPS, -1)])
    columns_of_a = advantages[:, None]
    ratios = np.exp(log_probs - old)
    clipped = ratios.clip(1 - trainer.clip, 1 + trainer.clip_high)
    kl, kl_slope = divergence(trainer.kl, log_probs - reference)
    token_losses = np.maximum(-ratios * columns_of_a, -clipped * columns_of_a) + trainer.kl_coef * kl
    slopes = np.where(-ratios * columns_of_a >= -clipped * columns_of_a, -ratios * columns_of_a, 0)
    slopes = slopes + trainer.kl_coef * kl_slope
    weights = trainer.loss_scale * mask * weights_of(trainer, mask)
    values = {
        "tokens": tokens,
        "mask": right if trainer.mask_only_in_loss else mask,
        "logits": logits,
        "log_probs": log_probs,
        "old_log_probs": old,
        "reference_log_probs": reference,
        "rewards": rewards,
        "groups": groups,
        "micro_batches": np.arange(SAMPLES) % trainer.micro_batches,
        "advantages": advantages,
        "ratios": ratios,
        "kl": kl,
        "token_losses": token_losses,
        "loss": (weights * token_losses).sum(),
        "gradients": weights * slopes,
    }
    return {
        name: value.astype(np.float32) if np.asarray(value).dtype == np.float64 else value
        for name, value in values.items()
    }


def of_group(trainer: Trainer, rewards: Array) -> Array:
    differences = rewards - rewards.mean()
    if not trainer.normalize_std:
        return differences
    return differences / (rewards.std(ddof=trainer.std_divisor) + trainer.std_epsilon)


def chosen(logits: Array, tokens: NDArray[np.int64]) -> Array:
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(log_probs, tokens[..., None], -1)[..., 0].astype(np.float64)


def divergence(estimator: str, difference: Array) -> tuple[Array, Array]:
    """Returns the estimate and its derivative."""
    if estimator == "k1":
        return difference, np.ones_like(difference)
    if estimator == "k2":
        return difference**2 / 2, difference
    return np.exp(-difference) - 1 + difference, 1 - np.exp(-difference)


def weights_of(trainer: Trainer, mask: Array) -> Array:
    """Returns `[B, 1]`."""
    weights = np.zeros((SAMPLES, 1))
    for number in range(trainer.micro_batches):
        own = np.arange(SAMPLES) % trainer.micro_batches == number
        tokens = mask[own].sum(1, keepdims=True)
        if trainer.reduction == "per_token":
            weights[own] = 1 / tokens.sum()
        elif trainer.reduction == "dr_grpo":
            weights[own] = 1 / (own.sum() * trainer.constant)
        else:
            weights[own] = 1 / (own.sum() * tokens)
    return weights / trainer.micro_batches
