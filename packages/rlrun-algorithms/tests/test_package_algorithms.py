"""Every algorithm of the package against its paper, written out sample by sample in float64, and its limits.

The rollouts and the comparison are those of rlrun's own algorithms (tests/plugins/algorithms/rollouts.py).
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.plugins.testing import check_algorithm, check_plugin, group
from rlrun.plugins.testing import sample as make_sample
from rlrun.plugins.types import Group, LossInputs, Sample, Status, TurnReward
from rlrun.plugins.validation import load_checked_spec
from tests.plugins.algorithms.rollouts import Rollout, check_step, clipped, loss_inputs, of_step, rollouts
from tests.plugins.algorithms.shipped import algorithms_of
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model

BASE = Path(__file__).parents[3] / "tests" / "specs" / "base.toml"


def deviation(one: Rollout) -> float:
    return (one.reward - one.group_mean) / (one.group_std + 1e-6)


def topr(step: list[Rollout]) -> list[torch.Tensor]:
    """TOPR: full weight where the advantage is not below 0, else the sample's ratio, at most 1."""
    losses = []
    for one in step:
        advantage = one.reward - one.group_mean
        ratio = math.prod(
            math.exp(new - old) for new, old in zip(one.new.tolist(), one.old.tolist(), strict=True)
        )
        losses.append(-(1.0 if advantage >= 0 else min(ratio, 1.0)) * advantage * one.new)
    return losses


def vespo(step: list[Rollout]) -> list[torch.Tensor]:
    """VESPO: W^k exp(lambda (1 - W)) A log pi, with (k, lambda) = (2, 3), or (3, 2) where A < 0."""
    losses = []
    for one in step:
        advantage = deviation(one)
        ratio = math.exp((one.new.detach() - one.old).sum())
        k, decay = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
        losses.append(-(ratio**k) * math.exp(decay * (1 - ratio)) * advantage * one.new)
    return losses


def luspo(step: list[Rollout]) -> list[torch.Tensor]:
    """LUSPO: GSPO's clipped loss of a sample, times its length."""
    losses = []
    for one in step:
        length, advantage = len(one.new), deviation(one)
        ratio = (one.new.sum().exp() / one.old.sum().exp()) ** (1 / length)
        inside = ratio.clamp(1 - 2e-3, 1 + 2.5e-3)
        losses.append((-length * torch.minimum(ratio * advantage, inside * advantage)).expand(length))
    return losses


def gpg(step: list[Rollout]) -> list[torch.Tensor]:
    """GPG where no group has equal rewards: alpha = 1, F_norm = 1."""
    return [-(one.reward - one.group_mean) * one.new for one in step]


def gigpo(step: list[Rollout]) -> list[torch.Tensor]:
    """GiGPO: A_E + A_S, both divided by the deviation; the last turn has the reward."""
    states: dict[tuple[Any, ...], list[tuple[int, int, float]]] = defaultdict(list)
    turns: list[list[int]] = []
    for number, one in enumerate(step):
        numbers, found, seen = [], [], ["prompt"]
        for place, made in enumerate(one.mask.tolist()):
            if made:
                if seen:
                    found.append(tuple(seen))
                    seen = []
                numbers.append(len(found) - 1)
            else:
                seen.append(place)
        for turn, state in enumerate(found):
            value = 0.95 ** (len(found) - 1 - turn) * one.reward
            states[(one.group, *state)].append((number, turn, value))
        turns.append(numbers)
    scores = {}
    for members in states.values():
        values = torch.tensor([value for *_, value in members], dtype=torch.float64)
        for number, turn, value in members:
            spread = float(values.std()) + 1e-6 if len(members) > 1 else 1.0
            scores[number, turn] = (value - float(values.mean())) / spread
    return [
        clipped(
            one,
            torch.tensor([deviation(one) + scores[number, turn] for turn in turns[number]]).double(),
            0.2,
            0.2,
        )
        for number, one in enumerate(step)
    ]


def a_star_po(step: list[Rollout]) -> list[torch.Tensor]:
    """A*-PO: (beta2 log(pi / pi_ref) - (r - V*))² with V* = beta1 log mean exp(r_ref / beta1)."""
    losses = []
    for one in step:
        rewards = one.reference_rewards
        value = 0.5 * math.log(sum(math.exp(reward / 0.5) for reward in rewards) / len(rewards))
        change = one.new.sum() - one.reference.sum()
        losses.append(((1e-3 * change - (one.reward - value)) ** 2).expand(len(one.new)))
    return losses


def optimal_token_baseline(step: list[Rollout]) -> list[torch.Tensor]:
    """OTB: B_t = sum of W_t R / sum of W_t, W_t = sum up to t of 1 - 2 pi + sum of pi²; 0 for one sample."""
    losses = []
    for one in step:
        own = [other for other in step if other.group == one.group]
        advantages = []
        for t in range(len(one.old)):
            weights, weighted = [], []
            for other in own:
                if t < len(other.old):
                    probs, squares = other.old[: t + 1].exp().tolist(), other.squared_probs[: t + 1].tolist()
                    weights.append(sum(1 - 2 * p + s for p, s in zip(probs, squares, strict=True)))
                    weighted.append(weights[-1] * other.reward)
            baseline = sum(weighted) / (sum(weights) + 1e-8) if len(weights) > 1 else 0.0
            advantages.append(one.reward - baseline)
        losses.append(clipped(one, torch.tensor(advantages).double(), 0.2, 0.2))
    return losses


def hierarchical_grpo(step: list[Rollout]) -> list[torch.Tensor]:
    """Without roles: r - group mean, as prime-rl's grpo."""
    return [clipped(one, torch.full_like(one.old, one.reward - one.group_mean), 0.2, 0.2) for one in step]


REFERENCES: dict[str, Callable[[list[Rollout]], list[torch.Tensor]]] = {
    "topr": topr,
    "vespo": vespo,
    "luspo": luspo,
    "gpg": gpg,
    "gigpo": gigpo,
    "hierarchical_grpo": hierarchical_grpo,
    "a_star_po": a_star_po,
    "optimal_token_baseline": optimal_token_baseline,
}


def test_every_algorithm_of_the_package_has_a_reference() -> None:
    assert REFERENCES.keys() == set(algorithms_of("rlrun-algorithms"))


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
@pytest.mark.parametrize("name", REFERENCES)
def test_a_step_s_loss_and_gradient_are_the_paper_s(name: str, reduction: Any) -> None:
    check_step(name, {}, reduction, REFERENCES[name])


@pytest.mark.parametrize("name", [name for name in REFERENCES if name != "a_star_po"])
def test_it_keeps_the_contract_with_every_term_on(name: str) -> None:
    check_algorithm(name, {})
    terms = {
        "entropy_coef": 0.01,
        "kl": {"in_loss": {"coef": 0.1}},
        "opsm": 0.1,
        "normalize_advantages": True,
    }
    check_algorithm(name, terms)


@pytest.mark.parametrize("name", REFERENCES)
def test_the_check_of_plugins_passes(name: str) -> None:
    check_plugin("algorithms", name)


def inputs_of(name: str) -> LossInputs:
    groups, step = rollouts()
    return loss_inputs(step, of_step(groups, build("algorithms", name, {}).advantages(groups)))


def per_sample(name: str, given: LossInputs, **params: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss of each sample, and the gradient of their sum."""
    log_probs = given.log_probs.detach().clone().requires_grad_()
    loss = build("algorithms", name, params).loss(replace(given, log_probs=log_probs)).loss
    means = given.sample_sum(loss * given.mask) / given.sample_sum(given.mask)
    means.sum().backward()
    assert log_probs.grad is not None
    return means.detach(), log_probs.grad


FLAT = {"k": 1e-9, "decay": 1e-9, "k_negative": 1e-9, "decay_negative": 1e-9}
OPEN = {"clip": 1 - 1e-9, "clip_high": 1e9}


def test_vespo_with_a_flat_weight_is_the_plain_policy_gradient() -> None:
    given = inputs_of("grpo")
    torch.testing.assert_close(per_sample("vespo", given, **FLAT), per_sample("gpg", given))


def test_vespo_of_power_1_without_decay_is_importance_sampling_of_whole_samples() -> None:
    """Its gradient is that of -product of the ratios · A, the same on each token of a sample."""
    given = inputs_of("grpo")
    weights = FLAT | {"k": 1.0, "k_negative": 1.0}
    _, gradients = per_sample("vespo", given, **weights)
    log_probs = given.log_probs.detach().clone().requires_grad_()
    ratio = given.sample_sum((log_probs - given.old_log_probs) * given.mask).exp()
    count = given.sample_sum(given.mask)
    (-ratio[given.sample] * given.advantages * given.mask / count[given.sample] ** 2).sum().backward()
    assert log_probs.grad is not None
    torch.testing.assert_close(gradients, log_probs.grad)


def test_topr_keeps_good_samples_and_with_a_large_cap_the_ratio_of_bad_ones() -> None:
    given = inputs_of("dr_grpo")
    plain, _ = per_sample("gpg", given)
    tapered, _ = per_sample("topr", given, cap=1e9)
    ratio = given.sample_sum((given.log_probs.detach() - given.old_log_probs) * given.mask).exp()
    bad = given.sample_sum(given.advantages * given.mask) < 0
    assert bad.any() and not bad.all() and (ratio[bad] > 1).any()
    torch.testing.assert_close(tapered, plain * ratio.where(bad, 1.0))


def test_luspo_is_gspo_times_the_length() -> None:
    """So that GSPO with the reduction per_token differs from it by the mean length alone."""
    given = inputs_of("grpo")
    lengths = given.sample_sum(given.mask)
    bounds = {"clip": 2e-3, "clip_high": 2.5e-3}
    own, gradients = per_sample("luspo", given)
    gspo, gspo_gradients = per_sample("gspo", given, **bounds)
    torch.testing.assert_close(own, lengths * gspo)
    torch.testing.assert_close(gradients, lengths[given.sample] * gspo_gradients)


def advantages_of(name: str, groups: list[Group], **params: Any) -> np.ndarray:
    return np.concatenate(build("algorithms", name, params).advantages(groups))


def test_gpg_makes_up_for_groups_of_equal_rewards() -> None:
    """2 of the 5 samples that are compared are in a group without a gradient: alpha = 5 / 3."""
    groups = [group([1.0, 0.0, 0.5, 0.0]), group([1.0, 1.0])]
    groups[0].samples[3].status = Status.FAILED
    expected = 5 / 3 * advantages_of("dr_grpo", groups)
    np.testing.assert_allclose(advantages_of("gpg", groups), expected, rtol=1e-6)
    equal = [group([1.0, 1.0])]
    assert not advantages_of("gpg", equal).any()


def test_gigpo_without_the_turns_is_grpo() -> None:
    groups, _ = rollouts()
    np.testing.assert_array_equal(
        advantages_of("gigpo", groups, step_weight=0.0), advantages_of("grpo", groups)
    )


def conversation(sample: Sample, turns: list[tuple[list[int], list[int]]], rewards: list[float]) -> None:
    """Makes a sample of observations and answers to them, each of which is rewarded."""
    tokens = [token for observation, answer in turns for token in (*observation, *answer)]
    mask = [made for seen, answer in turns for made in (*(0 for _ in seen), *(1 for _ in answer))]
    sample.tokens, sample.loss_mask = np.array(tokens, np.int32), np.array(mask, np.float32)
    sample.log_probs = -sample.loss_mask
    ends = np.cumsum([len(seen) + len(answer) for seen, answer in turns]).tolist()
    sample.turn_rewards = tuple(map(TurnReward, ends, rewards))
    sample.reward = sum(rewards)


def test_gigpo_compares_turns_after_the_same_observation_wherever_they_are() -> None:
    """The observation 8 is seen by the second turn of two samples, and again by the third of one of them."""
    one = group([0.0, 0.0], [1, 1])
    conversation(one.samples[0], [([], [1]), ([8], [2]), ([8], [3])], [0.0, 1.0, 4.0])
    conversation(one.samples[1], [([], [5]), ([8], [6]), ([9], [7])], [0.0, 0.0, 0.0])
    algorithm = build("algorithms", "gigpo", {"gamma": 0.5, "normalize_std": False})
    first, second = algorithm.of_turns(one)
    # From turn 1: 1.5 and 0. After 8: 1 + 0.5 · 4 = 3, 4, and 0. After 9 there is nothing to compare with.
    np.testing.assert_allclose(first, [0.75, 0, 3 - 7 / 3, 0, 4 - 7 / 3])
    np.testing.assert_allclose(second, [-0.75, 0, -7 / 3, 0, 0])


@pytest.mark.parametrize("given", [[], [0.25, 0.0]], ids=str)
def test_what_no_turn_was_given_belongs_to_the_last_one(given: list[float]) -> None:
    one = group([0.0, 0.0], [1, 1])
    conversation(one.samples[0], [([], [1]), ([8], [2])], given)
    conversation(one.samples[1], [([], [5]), ([9], [6])], [])
    one.samples[0].reward = 1.0
    algorithm = build("algorithms", "gigpo", {"gamma": 0.5, "normalize_std": False})
    first = 0.25 + 0.5 * 0.75 if given else 0.5
    np.testing.assert_allclose(algorithm.of_turns(one)[0][0], first / 2)


def with_probabilities(lengths: list[int], probs: list[float]) -> Group:
    """Samples of rewards 1, 0, 0…, whose tokens each had one probability, the rest of it on one other."""
    one = group([1.0, *[0.0] * (len(lengths) - 1)], lengths)
    for sample, prob in zip(one.samples, probs, strict=True):
        sample.policy_log_probs = np.full(len(sample.tokens), math.log(prob), np.float32)
        sample.policy_squared_probs = np.full(len(sample.tokens), prob**2 + (1 - prob) ** 2, np.float32)
    return one


def test_samples_of_equal_certainty_and_length_have_the_group_s_mean_as_baseline() -> None:
    groups = [with_probabilities([3, 3, 3], [0.5, 0.5, 0.5])]
    expected = advantages_of("dr_grpo", groups)
    np.testing.assert_allclose(advantages_of("optimal_token_baseline", groups), expected, rtol=1e-6)


def test_an_uncertain_sample_counts_most_and_a_finished_one_does_not() -> None:
    groups = [with_probabilities([1, 2, 3], [0.001, 0.999, 0.999])]
    first, *others = np.split(advantages_of("optimal_token_baseline", groups), [1, 3])
    np.testing.assert_allclose(first, [0.0], atol=1e-4)
    np.testing.assert_allclose(others[0], [-1.0, 0.0], atol=1e-4)
    np.testing.assert_allclose(others[1], [-1.0, 0.0, 0.0], atol=1e-4)


def test_the_samples_of_one_execution_are_one_trajectory() -> None:
    apart = with_probabilities([4, 3], [0.5, 0.2])
    together = with_probabilities([1, 3, 3], [0.5, 0.5, 0.2])
    together.samples[1].reward = 1.0
    for sample in together.samples[:2]:
        sample.execution_id = "0-0"
    arrays = [advantages_of("optimal_token_baseline", [one]) for one in (apart, together)]
    np.testing.assert_allclose(*arrays)


def with_references(rewards: list[float]) -> Group:
    one = group([1.0], [2])
    one.prompt = replace(one.prompt, row=replace(one.prompt.row, metadata={"reference_rewards": rewards}))
    return one


@pytest.mark.parametrize(("temperature", "value"), [(1e-3, 2.0), (1e6, 0.5)])
def test_the_optimal_value_is_between_the_best_reward_and_the_mean(temperature: float, value: float) -> None:
    found = advantages_of("a_star_po", [with_references([2.0, 0.0, -0.5])], value_beta=temperature)
    np.testing.assert_allclose(found, 1.0 - value, atol=2e-3)


def test_at_the_reference_a_star_po_has_the_direction_of_the_policy_gradient() -> None:
    given = inputs_of("a_star_po")
    given = replace(given, reference_log_probs=given.log_probs.detach())
    _, gradients = per_sample("a_star_po", given, beta=0.1)
    _, plain = per_sample("gpg", given)
    lengths = given.sample_sum(given.mask)[given.sample]
    torch.testing.assert_close(gradients, 0.2 * lengths * plain)


def test_a_row_without_rewards_of_the_reference_is_named() -> None:
    with pytest.raises(ValueError, match=r"row 0 has no list of rewards in metadata\.reference_rewards"):
        advantages_of("a_star_po", [with_references([])])


def test_a_rank_trains_with_an_algorithm_of_the_package(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    spec = make_spec(folder, algorithm={"type": "topr", "cap": 2.0})
    rank = make_rank(folder, spec)
    sequences = make_sequences()
    (metrics,) = rank.policy.train(sequences, plan(sequences, spec))
    rank.close()
    assert 0 < metrics["train/topr_weight"] < 1
    assert metrics["train/grad_norm"] > 0


def test_parameters_are_checked_with_the_spec(tmp_path: Path) -> None:
    broken = tmp_path / "job.toml"
    broken.write_text(f'extends = "{BASE}"\n[algorithm]\ntype = "topr"\ncap = 0\n')
    with pytest.raises(ValueError, match=r"job\.toml:4:7: algorithm\.cap: must be greater than 0"):
        load_checked_spec([broken])


def test_solvers_are_compared_within_an_execution_and_proposers_within_the_group() -> None:
    rewards = [[("proposer", 1.0), ("solver", 0.0), ("solver", 1.0)], [("proposer", 0.0), ("solver", 0.25)]]
    members: list[Sample] = []
    for number, own in enumerate(rewards):
        for place, (role, reward) in enumerate(own):
            one = make_sample(reward=reward, length=2, id=f"0-{number}.{place}")
            one.execution_id, one.info = f"0-{number}", {"player": role}
            members.append(one)
    members[2:2] = [make_sample(reward=9.0, length=1, id="0-9", status=Status.FAILED)]
    algorithm = build("algorithms", "hierarchical_grpo", {})
    arrays = algorithm.advantages([Group(members[0].prompt, members)])
    assert [float(array[0]) for array in arrays] == [0.5, -0.5, 0.0, 0.5, -0.5, 0.0]
    scaled = build("algorithms", "hierarchical_grpo", {"normalize_std": True, "episode_roles": ()})
    arrays = scaled.advantages([Group(members[0].prompt, members)])
    solvers = np.array([0.0, 1.0, 0.25])
    expected = (solvers - solvers.mean()) / (solvers.std(ddof=1) + 1e-6)
    assert [float(arrays[place][0]) for place in (1, 3, 5)] == pytest.approx(expected)
