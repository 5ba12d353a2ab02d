"""Losses and advantages against reference numbers: one row, one function, one input, one output."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms.advantages import (
    centred,
    discounted_sums,
    group_relative,
    reward_at_end,
    whiten,
)
from rlrun.plugins.algorithms.correction import Correction, correction_weight, off_policy_mask
from rlrun.plugins.algorithms.kl import estimate
from rlrun.plugins.algorithms.policy_loss import cispo_loss, clip_loss, sequence_divergence
from rlrun.plugins.testing import group
from rlrun.plugins.types import LossInputs

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "algo_vectors.jsonl").read_text().splitlines()
]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs(new: Any, old: Any, mask: Any, advantages: Any = None, samples: Any = None) -> LossInputs:
    return LossInputs(
        log_probs=tensor(new),
        entropy=torch.zeros(len(new)),
        old_log_probs=tensor(old),
        rollout_log_probs=tensor(old),
        reference_log_probs=None,
        advantages=tensor(advantages if advantages is not None else [0.0] * len(new)),
        mask=tensor(mask),
        sample=torch.tensor(samples if samples is not None else [0] * len(new)),
        num_samples=1 if samples is None else max(samples) + 1,
    )


def grpo_rewards(rewards: list[float], n: int, std: bool) -> Any:
    groups = [group(rewards[begin : begin + n]) for begin in range(0, len(rewards), n)]
    spread = group_relative(groups, std)
    for advantages, length in zip(
        spread, [length for _ in groups for length in range(1, n + 1)], strict=True
    ):
        assert len(advantages) == length
    return [advantages[0] for advantages in spread]


def approx_kl(type: Any, log_probs: list[float], base: list[float]) -> Any:
    return estimate(type, tensor(log_probs) - tensor(base))


def policy_loss(
    ratio: list[float], adv: list[float], eps_clip: float, eps_clip_high: float, eps_clip_c: float | None
) -> Any:
    loss, clipped = clip_loss(tensor(ratio), tensor(adv), eps_clip, eps_clip_high, eps_clip_c)
    return {"loss": loss, "clipfrac": clipped}


def cispo(ratio: Any, adv: Any, log_probs: Any, eps_clip: float, eps_clip_high: float) -> Any:
    new = tensor(log_probs)
    loss, clipped = cispo_loss(new, new - tensor(ratio).log(), tensor(adv), eps_clip, eps_clip_high)
    return {"loss": loss, "clipfrac": clipped}


def gspo_ratio(old: Any, new: Any, mask: Any) -> Any:
    divergence = sequence_divergence(inputs(new, old, mask))
    return {"seq_kl": divergence[0], "ratio_every_token": (-divergence).exp()[0]}


def reinforce_pp_returns(reward: float, kl: Any, mask: Any, kl_coef: float, gamma: float) -> Any:
    penalised = reward_at_end(reward, np.array(mask, np.float32)) - kl_coef * np.array(kl) * mask
    return discounted_sums(penalised, gamma)


def gae(token_rewards: Any, values: Any, gamma: float, lambd: float) -> Any:
    """Generalised advantages are discounted sums of the temporal differences."""
    differences = np.array(token_rewards) + gamma * np.array([*values[1:], 0.0]) - values
    advantages = discounted_sums(differences, gamma * lambd)
    return {"advantages": advantages, "returns": advantages + values}


def masked_whiten(x: Any, mask: Any) -> Any:
    return whiten([np.array(x, np.float32)], [np.array(mask, np.float32)])[0]


def weight_of(type: Any) -> Callable[..., Any]:
    def weight(train: Any, rollout: Any, clip: float, clip_low: float) -> Any:
        correction = Correction(type=type, low=clip_low, high=clip)
        weight, _, outside = correction_weight(correction, tensor(train), tensor(rollout))
        return {"weight": weight, "clipfrac": outside}

    return weight


def opsm_mask(delta: float, note: str, **tokens: Any) -> Any:
    """The reference masks token by token; whole samples agree with it when each has one token."""
    length = len(tokens["mask"])
    one_token_samples = inputs(
        tokens["new"], tokens["old"], tokens["mask"], advantages=tokens["adv"], samples=range(length)
    )
    keep = off_policy_mask(one_token_samples, delta)
    return {"keep": keep, "clipfrac": 1 - keep.mean()}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "grpo_rewards": grpo_rewards,
    "approx_kl": approx_kl,
    "policy_loss": policy_loss,
    "cispo_loss": cispo,
    "gspo_ratio": gspo_ratio,
    "reinforce_pp_returns": reinforce_pp_returns,
    "gae": gae,
    "masked_whiten": masked_whiten,
    "tis_weight": weight_of("tis"),
    "icepop_weight": weight_of("icepop"),
    "opsm_mask": opsm_mask,
}
ELSEWHERE = {
    "loss_reduce",  # tests/runner/test_reduction.py
    "reinforce_pp_baseline",  # a KL penalty inside the reward, which no shipped algorithm takes
    "value_loss",  # a critic, which no shipped algorithm has
}


def test_every_row_is_checked_or_listed_as_out_of_reach() -> None:
    assert {row["fn"] for row in ROWS} == FUNCTIONS.keys() | ELSEWHERE


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{row['fn']}-{number}")
        for number, row in enumerate(ROWS)
        if row["fn"] in FUNCTIONS
    ],
)
def test_functions_agree_with_the_reference(row: dict[str, Any]) -> None:
    found = FUNCTIONS[row["fn"]](**row["in"])
    expected = row["out"] if isinstance(row["out"], dict) else {"": row["out"]}
    found = found if isinstance(found, dict) else {"": found}
    for key, values in expected.items():
        np.testing.assert_allclose(np.asarray(found[key]), values, rtol=row["tol"], atol=row["tol"])


def test_std_is_unbiased() -> None:
    advantages = centred(np.array([1.0, 0.0]), normalize_std=True)
    assert advantages[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6))
