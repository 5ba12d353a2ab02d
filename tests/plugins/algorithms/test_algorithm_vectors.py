"""Losses and advantages against reference numbers: one row, one function, one input, one output."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms import shaping
from rlrun.plugins.algorithms.advantages import centre_rewards, group_relative, whiten
from rlrun.plugins.algorithms.correction import Correction, correction_weight, off_policy_mask
from rlrun.plugins.algorithms.kl import KLTerm, token_kl
from rlrun.plugins.algorithms.policy_loss import cispo_loss, clip_loss, mean_divergence
from rlrun.plugins.registry import build
from rlrun.plugins.testing import group
from rlrun.plugins.types import Group, LossInputs, Sample, ValueInputs

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "algo_vectors.jsonl").read_text().splitlines()
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


def approx_kl(type: Any, log_probs: list[float], base: list[float], importance_ratio: Any = None) -> Any:
    new = tensor(log_probs)
    old = new if importance_ratio is None else new - tensor(importance_ratio).log()
    term = KLTerm(type=type, coef=0.0, unbiased=importance_ratio is not None)
    return token_kl(term, new, tensor(base), old)


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
    divergence = mean_divergence(inputs(new, old, mask), tensor(old))
    return {"seq_kl": divergence[0], "ratio_every_token": (-divergence).exp()[0]}


def with_kl(sample: Sample, kl: list[float]) -> Sample:
    """k1 is the difference of the log-probs."""
    sample.policy_log_probs = np.array(kl, np.float32)
    sample.reference_log_probs = np.zeros(len(kl), np.float32)
    return sample


def raw(algorithm: str, groups: list[Group], **params: Any) -> Any:
    """Advantages before they are whitened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shaping, "whiten", lambda advantages, masks: list(advantages))
        return build("algorithms", algorithm, params).advantages(groups)


def reinforce_pp_returns(reward: float, kl: Any, mask: Any, kl_coef: float, gamma: float) -> Any:
    one = group([reward], lengths=[len(kl)])
    one.samples[0].loss_mask = np.array(mask, np.float32)
    with_kl(one.samples[0], kl)
    return raw("reinforce_plus_plus", [one], gamma=gamma, kl=in_reward(kl_coef))[0]


def reinforce_pp_baseline(reward_minus_group_mean: float, kl: Any, kl_coef: float) -> Any:
    half = group([reward_minus_group_mean, -reward_minus_group_mean], lengths=[len(kl), 1])
    with_kl(half.samples[0], kl)
    return raw("reinforce_plus_plus_baseline", [half], kl=in_reward(kl_coef))[0]


def in_reward(coef: float) -> Any:
    return {"in_reward": {"type": "k1", "coef": coef} if coef else None}


def gae(token_rewards: list[float], values: list[float], gamma: float, lambd: float) -> Any:
    """All rewards but the last token's, the sample's, are KL penalties: k1 of the same size."""
    one = group([token_rewards[-1]], lengths=[len(values)])
    one.samples[0].values = np.array(values, np.float32)
    with_kl(one.samples[0], [-reward for reward in token_rewards[:-1]] + [0.0])
    params = {"gamma": gamma, "lambd": lambd, "kl": in_reward(1.0)}
    algorithm = build("algorithms", "ppo", params)
    return {"advantages": algorithm.advantages([one])[0], "returns": algorithm.returns([one])[0]}


def value_loss(values: Any, old: Any, returns: Any, clip: float) -> Any:
    algorithm = build("algorithms", "ppo", {"value_clip": clip})
    mask = torch.ones(len(values))
    outputs = algorithm.value_loss(ValueInputs(tensor(values), tensor(old), tensor(returns), mask))
    return {"loss": outputs.loss, "clipfrac": outputs.metrics["value_clip_frac"]}


def masked_whiten(x: Any, mask: Any) -> Any:
    return whiten([np.array(x, np.float32)], [np.array(mask, np.float32)])[0]


def weight_of(type: Any) -> Callable[..., Any]:
    def weight(train: Any, rollout: Any, clip: float, clip_low: float) -> Any:
        correction = Correction(type=type, low=clip_low, high=clip)
        drawn = inputs(train, train, [1.0] * len(train))
        found = correction_weight(correction, replace(drawn, rollout_log_probs=tensor(rollout)))
        return {"weight": found.weight, "clipfrac": found.outside}

    return weight


def opsm_mask(adv: list[float], mask: list[float], delta: float, note: str = "", **log_probs: Any) -> Any:
    """The reference masks token by token; whole samples agree with it when all tokens have its advantage."""
    whole = [inputs(**log_probs, mask=mask, advantages=[one] * len(adv)) for one in adv]
    keep = [float(off_policy_mask(one, delta)[place]) for place, one in enumerate(whole)]
    return {"keep": keep, "clipfrac": (len(keep) - sum(keep)) / max(sum(mask), 1)}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "grpo_rewards": grpo_rewards,
    "approx_kl": approx_kl,
    "policy_loss": policy_loss,
    "cispo_loss": cispo,
    "gspo_ratio": gspo_ratio,
    "reinforce_pp_returns": reinforce_pp_returns,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "value_loss": value_loss,
    "gae": gae,
    "masked_whiten": masked_whiten,
    "tis_weight": weight_of("tis"),
    "icepop_weight": weight_of("icepop"),
    "opsm_mask": opsm_mask,
}
ELSEWHERE = {"loss_reduce"}  # tests/runner/batches/test_reduction.py


def test_every_row_is_checked_here_or_elsewhere() -> None:
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
    advantages = centre_rewards(np.array([1.0, 0.0]), normalize_std=True)
    assert advantages[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6))
