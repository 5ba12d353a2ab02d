"""Every shipped algorithm keeps the contract, and differs from the others where its paper says so."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms.advantages import discounted_sums, leave_one_out, whiten
from rlrun.plugins.algorithms.correction import Correction, correction_weight
from rlrun.plugins.registry import PluginError, build, load
from rlrun.plugins.testing import check_algorithm, group, micro_batch
from rlrun.plugins.types import Group, Needs, Status, ValueInputs
from tests.plugins.algorithms.shipped import SHIPPED

SUPERVISED = {"sft", "dpo", "online_dpo", "ipo", "simpo", "orpo", "kto", "gkd", "bradley_terry"}
MARKING = {"clip_cov", "kl_cov", "m2po"}
RAW = [
    name
    for name in SHIPPED
    if "subtract_mean" in load("algorithms", name).Params.model_fields
    and name != "reinforce_plus_plus_baseline"
]
"""Those that compare the samples of a group, or take the reward itself as the advantage."""
NOT_COMPARED = {"reinforce_plus_plus", "ppo", "on_policy_distillation", "remax", "rae"}
EVERYTHING = {
    "entropy_coef": 0.01,
    "kl": {"in_loss": {"coef": 0.1}},
    "correction": {"type": "icepop"},
    "opsm": 0.1,
    "log_ratio_coef": 0.2,
    "normalize_advantages": True,
    "distillation": {"coef": 0.5},
    "top_entropy": 0.5,
    "adaptive_entropy": {"target": 2.0},
}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_algorithm_keeps_the_contract(name: str) -> None:
    check_algorithm(name, {})


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in SUPERVISED])
def test_with_every_term_on(name: str) -> None:
    params = EVERYTHING | {"m2po": {"correction": None}, "gmpo": {"top_entropy": None}}.get(name, {})
    check_algorithm(name, params)
    assert build("algorithms", name, params).needs == Needs(
        reference=True,
        entropy_grad=True,
        trainer_log_probs=True,
        teacher=True,
        policy_log_probs=True,
        current_log_probs=True,
        policy_entropies=True,
        state=True,
        critic=name == "ppo",
        engine_ratio=name == "dppo",
        marks=name in MARKING,
        rewards=name != "on_policy_distillation",
        greedy_reward=name == "remax",
        group_relative=name not in NOT_COMPARED,
    )


@pytest.mark.parametrize("name", RAW)
def test_without_the_group_s_mean_the_reward_is_the_advantage(name: str) -> None:
    algorithm = build("algorithms", name, {"subtract_mean": False})
    groups = [group([1.0, 0.25]), group([-3.0])]
    assert [values[0] for values in algorithm.advantages(groups)] == [1.0, 0.25, -3.0]
    assert not algorithm.needs.group_relative
    with pytest.raises(PluginError, match="normalize_std has no effect with subtract_mean = false"):
        build("algorithms", name, {"subtract_mean": False, "normalize_std": True})


def test_reinforce_plus_plus_baseline_whitens_raw_rewards_without_the_group_s_mean() -> None:
    algorithm = build("algorithms", "reinforce_plus_plus_baseline", {"subtract_mean": False})
    groups = [group([1.0, 0.25], [1, 1]), group([-3.0], [1])]
    rewards = np.array([1.0, 0.25, -3.0])
    expected = (rewards - rewards.mean()) / rewards.std(ddof=1)
    assert [values[0] for values in algorithm.advantages(groups)] == pytest.approx(expected, rel=1e-5)
    assert not algorithm.needs.group_relative


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in {*SUPERVISED, "cispo"}])
def test_the_first_step_is_plain_policy_gradient(name: str) -> None:
    """At ratio 1 every clipped loss is -A, and its gradient -A (GSPO: its sample's mean) on each token.

    SAPO's loss has another value there, 2 / tau times as large, with the same gradient.
    """
    old = torch.tensor([-1.0, -2.0, -3.0])
    inputs = micro_batch(
        num_tokens=3,
        num_samples=1,
        log_probs=old.clone().requires_grad_(),
        old_log_probs=old,
        advantages=torch.tensor([2.0, 2.0, 2.0]),
        mask=torch.ones(3),
        rollout_log_probs=old,
        marks=torch.zeros(3),
    )
    outputs = build("algorithms", name, {}).loss(inputs)
    assert name == "sapo" or torch.equal(outputs.loss, -inputs.advantages)
    assert not outputs.metrics["approx_kl"].any()
    assert not outputs.metrics["clip_frac"].any()
    outputs.loss.sum().backward()
    torch.testing.assert_close(inputs.log_probs.grad, torch.full((3,), -2.0))


def test_sft_is_the_negative_log_likelihood() -> None:
    inputs = micro_batch()
    assert torch.equal(build("algorithms", "sft", {}).loss(inputs).loss, -inputs.log_probs)
    assert build("algorithms", "sft", {}).needs == Needs(rollout=False, old_log_probs=False)


def test_grpo_alone_needs_neither_reference_nor_entropy() -> None:
    assert build("algorithms", "grpo", {}).needs == Needs(group_relative=True)


def test_correction_weighs_the_policy_loss_alone() -> None:
    """With every weight 0, only the KL and entropy terms remain."""
    far = micro_batch(rollout_log_probs=torch.full((12,), -40.0))
    params = EVERYTHING | {"opsm": None, "log_ratio_coef": 0.0, "adaptive_entropy": None}
    outputs = build("algorithms", "grpo", params).loss(far)
    kl_and_entropy = 0.1 * outputs.metrics["kl_loss"] - 0.01 * outputs.metrics["entropy"]
    torch.testing.assert_close(outputs.loss.detach(), kl_and_entropy)
    assert not outputs.metrics["pg_loss"].any()
    assert outputs.metrics["tis/clip_frac"].all()


def test_a_kl_term_with_weight_0_measures_and_trains_nothing() -> None:
    inputs = micro_batch()
    plain = build("algorithms", "grpo", {}).loss(inputs)
    measured = build("algorithms", "grpo", {"kl": {"in_loss": {"coef": 0}}}).loss(inputs)
    assert torch.equal(plain.loss, measured.loss)
    assert (measured.metrics["kl_loss"] >= 0).all()


def test_low_var_kl_stays_finite_where_k3_overflows() -> None:
    params = {"kl": {"in_loss": {"type": "low_var_kl", "coef": 1.0}}}
    far = torch.full((12,), -200.0)
    inputs = micro_batch(
        log_probs=far.clone().requires_grad_(), old_log_probs=far, reference_log_probs=torch.zeros(12)
    )
    outputs = build("algorithms", "grpo", params).loss(inputs)
    assert (outputs.metrics["kl_loss"] == 10).all()
    outputs.loss.sum().backward()
    assert inputs.log_probs.grad is not None
    torch.testing.assert_close(inputs.log_probs.grad, -inputs.advantages)


@pytest.mark.parametrize(("away", "log_ratio", "expected"), [(-25.0, -24.0, math.e), (-25.0, -20.0, 10.0)])
def test_the_ratio_comes_before_the_bounds_of_low_var_kl(
    away: float, log_ratio: float, expected: float
) -> None:
    """k3 times the ratio, then within ±10: a large estimate of an unlikely token may count little."""
    new = torch.tensor([-30.0], requires_grad=True)
    inputs = micro_batch(
        1, 1, log_probs=new, old_log_probs=new.detach() - log_ratio, reference_log_probs=new.detach() - away
    )
    params = {"kl": {"in_loss": {"type": "low_var_kl", "unbiased": True}}}
    found = build("algorithms", "grpo", params).loss(inputs).metrics["kl_loss"].item()
    assert found == pytest.approx(expected, rel=1e-5)


def test_unbiased_kl_is_weighted_by_the_ratio() -> None:
    inputs = micro_batch(reference_log_probs=torch.full((12,), -1.0))
    losses = {
        unbiased: build("algorithms", "grpo", {"kl": {"in_loss": {"type": "k2", "unbiased": unbiased}}})
        .loss(inputs)
        .metrics["kl_loss"]
        for unbiased in (False, True)
    }
    ratio = (inputs.log_probs - inputs.old_log_probs).exp().detach()
    torch.testing.assert_close(losses[True], losses[False] * ratio)


def test_gspo_gives_every_token_of_a_sample_the_same_ratio() -> None:
    inputs = micro_batch(advantages=torch.ones(12))
    loss = build("algorithms", "gspo", {"clip": 0.9, "clip_high": 99}).loss(inputs).loss
    for sample in range(3):
        assert len(loss[inputs.sample == sample].unique()) == 1


CLIPPED = [
    name
    for name in SHIPPED
    if "clip_high" in load("algorithms", name).Params.model_fields and name != "cispo"
]


@pytest.mark.parametrize("name", CLIPPED)
def test_a_clip_that_is_given_alone_bounds_both_sides(name: str) -> None:
    """Whatever `clip_high` was published beside the published `clip`: tokens with A > 0 keep a gradient."""

    def gradient(**params: float) -> Any:
        inputs = micro_batch(advantages=torch.ones(12))
        inputs.log_probs.data = inputs.old_log_probs + torch.linspace(0.1, 0.7, 12)
        build("algorithms", name, params).loss(inputs).loss.sum().backward()
        return inputs.log_probs.grad

    assert torch.equal(gradient(clip=0.5), gradient(clip=0.5, clip_high=0.5))
    assert not torch.equal(gradient(clip=0.5), gradient(clip=0.5, clip_high=0.01))


@pytest.mark.parametrize("old", [-1.0, None], ids=["rollout", "trainer"])
def test_off_policy_masking_takes_whole_samples_that_the_engine_rates_higher(old: float | None) -> None:
    """Whether the ratio's denominator is the engine's, or the trainer's own, to which the ratio is 1."""
    new = torch.tensor([-9.0, 0.0, -9.0, 0.0, -1.0, -1.0], requires_grad=True)
    inputs = micro_batch(
        num_tokens=6,
        num_samples=3,
        log_probs=new,
        old_log_probs=new.detach() if old is None else torch.full((6,), old),
        rollout_log_probs=torch.full((6,), -1.0),
        advantages=torch.tensor([-1.0, -1.0, 1.0, 1.0, -1.0, -1.0]),
        mask=torch.ones(6),
    )
    left_out = build("algorithms", "grpo", {"opsm": 0.5}).loss(inputs).metrics["opsm_frac"]
    assert left_out.tolist() == [1, 1, 0, 0, 0, 0]


COMPARED = [name for name in SHIPPED if name not in {*NOT_COMPARED, *SUPERVISED}]


@pytest.mark.parametrize("name", [name for name in COMPARED if "reinforce" not in name])
def test_a_group_of_one_has_advantage_0(name: str) -> None:
    (array,) = build("algorithms", name, {}).advantages([group([5.0], lengths=[3])])
    assert array.tolist() == [0, 0, 0]


def test_failed_and_unscored_samples_are_not_compared() -> None:
    whole = group([1.0, 0.0, 7.0, float("nan")], lengths=[1, 1, 1, 1])
    whole.samples[2].status = Status.FAILED
    advantages = build("algorithms", "dr_grpo", {}).advantages([whole])
    assert [array[0] for array in advantages] == [0.5, -0.5, 0, 0]


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in SUPERVISED])
def test_whitening_leaves_failed_and_unscored_samples_at_0(name: str) -> None:
    """They are in no statistic either; distillation alone needs no score."""
    params = {"normalize_advantages": True}
    whole = group([1.0, 0.0, 7.0, float("nan")], lengths=[2, 3, 1, 4])
    whole.samples[2].status = Status.FAILED
    found = build("algorithms", name, params).advantages([whole])
    assert not found[2].any()
    if name != "on_policy_distillation":
        alone = build("algorithms", name, params).advantages([group([1.0, 0.0], lengths=[2, 3])])
        assert not found[3].any()
        for mine, expected in zip(found, alone, strict=False):
            np.testing.assert_allclose(mine, expected, rtol=1e-6)


def test_groups_may_have_any_size() -> None:
    arrays = build("algorithms", "rloo", {}).advantages([group([1, 0, 0]), group([1, 0])])
    assert [array[0] for array in arrays] == [1, -0.5, -0.5, 1, -1]


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    rewards = np.array([3.0, 1.0, 8.0, 0.0])
    others = [np.delete(rewards, at).mean() for at in range(4)]
    np.testing.assert_allclose(leave_one_out(rewards), rewards - others)


def executions(*rewards: list[float]) -> Group:
    """A group whose executions left a sample for each of their rewards."""
    flat = [reward for own in rewards for reward in own]
    whole = group(flat, lengths=[1] * len(flat))
    names = [f"0-{number}" for number, own in enumerate(rewards) for _ in own]
    for one, name in zip(whole.samples, names, strict=True):
        one.execution_id = name
    return whole


@pytest.mark.parametrize(
    ("name", "rewards", "expected"),
    [
        ("dr_grpo", ([1, 1, 1], [0]), [0.5, 0.5, 0.5, -0.5]),
        ("grpo", ([1, 1, 1], [0]), [0.70710578] * 3 + [-0.70710578]),
        ("rloo", ([1, 1, 1], [0], [0]), [1, 1, 1, -0.5, -0.5]),
        ("rloo", ([1, 0], [1]), [0, -1, 0.5]),
        ("dr_grpo", ([1, 0], [0.5]), [0.5, -0.5, 0]),
        ("grpo", ([1, 0], [1, 0]), [0.70710578, -0.70710578] * 2),
        ("grpo", ([1, 0],), [0, 0]),
    ],
    ids=str,
)
def test_an_execution_counts_once_in_its_group(
    name: str, rewards: tuple[list[float], ...], expected: list[float]
) -> None:
    arrays = build("algorithms", name, {}).advantages([executions(*rewards)])
    assert [float(array[0]) for array in arrays] == pytest.approx(expected)


def test_whitening_sees_small_differences_between_large_rewards() -> None:
    """Beside a reward of 10⁷ float32 would know nothing of a penalty of 0.1 a token."""
    one = group([1e7], lengths=[3])
    one.samples[0].policy_log_probs = np.array([-1.0, -2.0, -3.0], np.float32)
    one.samples[0].reference_log_probs = np.array([-2.0, -3.0, -4.0], np.float32)
    params = {"kl": {"in_reward": {"coef": 0.1}}}
    (array,) = build("algorithms", "reinforce_plus_plus", params).advantages([one])
    np.testing.assert_allclose(array, [-1, 0, 1], atol=1e-5)


def test_given_tokens_have_no_penalty() -> None:
    """The engine has no log-prob of a tool's answer: 0 in its place would be far from any reference."""
    one = group([0.0], lengths=[3])
    answer = one.samples[0]
    answer.log_probs, answer.loss_mask = np.array([-1, 0, -1], np.float32), np.array([1, 0, 1], np.float32)
    answer.policy_log_probs, answer.values = answer.log_probs, np.zeros(3, np.float32)
    answer.reference_log_probs = np.array([-2, -9, -2], np.float32)
    (array,) = build("algorithms", "ppo", {"kl": {"in_reward": {"coef": 0.5}}}).advantages([one])
    assert array.tolist() == [-1, -0.5, -0.5]


def test_a_value_counts_as_clipped_beyond_the_bound() -> None:
    """Whichever of the two squares is larger."""
    inputs = ValueInputs(
        values=torch.tensor([1.0, 0.6, 0.0]),
        old_values=torch.full((3,), 0.5),
        returns=torch.tensor([0.0, 0.0, 2.0]),
        mask=torch.ones(3),
    )
    outputs = build("algorithms", "ppo", {}).value_loss(inputs)
    assert outputs.loss.tolist() == pytest.approx([1.0, 0.36, 4.0])
    assert outputs.metrics["value_clip_frac"].tolist() == [1, 0, 1]


def test_discounted_sums_equal_the_recursion() -> None:
    values = np.random.default_rng(0).normal(size=37)
    expected, total = np.zeros(37), 0.0
    for at in reversed(range(37)):
        total = values[at] + 0.9 * total
        expected[at] = total
    np.testing.assert_allclose(discounted_sums(values, 0.9), expected, rtol=1e-12)


def test_whitening_spans_the_whole_step() -> None:
    arrays = [np.array([1.0, 2.0], np.float32), np.array([30.0, 4.0, 5.0], np.float32)]
    masks = [np.ones(2, np.float32), np.array([0, 1, 1], np.float32)]
    trained = np.concatenate(
        [array[mask > 0] for array, mask in zip(whiten(arrays, masks), masks, strict=True)]
    )
    assert trained.mean() == pytest.approx(0, abs=1e-6)
    assert trained.std(ddof=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_a_step_without_a_trained_token_is_an_error(name: str) -> None:
    masked = group([1.0, 0.0])
    for sample in masked.samples:
        sample.loss_mask[:] = 0
    with pytest.raises(ValueError, match="no token of this step is trained"):
        build("algorithms", name, {}).advantages([masked])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"clip": 0}, "clip: .*greater than 0"),
        ({"dual_clip": 1.0}, "dual_clip: .*greater than 1"),
        ({"kl": {"in_reward": {"coef": 0.1}}}, r"kl\.in_reward"),
        ({"correction": {"veto": 0.1}}, r"only type = .mis. reads veto"),
        ({"correction": {"type": "mis", "low": 0.1}}, "has no lower bound: remove low"),
        ({"kl": {"in_loss": {"type": "k4"}}}, r"kl\.in_loss\.type"),
        ({"correction": {"low": 3}}, r"low \(3\) must be below high \(2\)"),
    ],
)
def test_wrong_parameters_are_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("algorithms", "grpo", params)


def test_a_kl_term_is_either_in_the_loss_or_in_the_reward() -> None:
    twice = {"in_loss": {"coef": 0.1}, "in_reward": {"coef": 0.1}}
    with pytest.raises(PluginError, match="penalise the same distance twice"):
        build("algorithms", "ppo", {"kl": twice})


@pytest.mark.parametrize("name", ["ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_a_kl_in_the_reward_needs_both_policies_before_the_advantages(name: str) -> None:
    needs = build("algorithms", name, {"kl": {"in_reward": {"coef": 0.1}}}).needs
    assert needs.reference and needs.policy_log_probs
    assert not build("algorithms", name, {}).needs.policy_log_probs


def spread_out(**correction: Any) -> Any:
    """Weights of two samples of ratios 1/2, 4 and 1, 1 (the third token is masked) under `mis`."""
    ratios = torch.tensor([0.5, 4.0, 100.0, 1.0, 1.0])
    inputs = micro_batch(
        num_tokens=5,
        num_samples=2,
        old_log_probs=ratios.log(),
        rollout_log_probs=torch.zeros(5),
        mask=torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]),
        sample=torch.tensor([0, 0, 0, 1, 1]),
    )
    section = Correction.model_validate({"type": "mis", "high": 2.0} | correction)
    return correction_weight(section, inputs).weight.tolist()


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        ({}, [0.5, 2, 2, 1, 1]),
        ({"mode": "clip", "low": 0.8}, [0.8, 2, 2, 1, 1]),
        ({"mode": "mask", "low": 0.6}, [0, 0, 0, 1, 1]),
        ({"level": "sequence", "high": 3}, [2, 2, 2, 1, 1]),
        ({"level": "sequence", "mode": "mask", "high": 1.5}, [0, 0, 0, 1, 1]),
        ({"level": "geometric"}, [2**0.5] * 3 + [1, 1]),
        ({"veto": 0.6}, [0, 0, 0, 1, 1]),
        ({"veto": 0.4}, [0.5, 2, 2, 1, 1]),
        ({"veto": 1e-12}, [0.5, 2, 2, 1, 1]),
    ],
    ids=str,
)
def test_mis_weights_tokens_or_samples(correction: dict[str, Any], weights: list[float]) -> None:
    assert spread_out(**correction) == pytest.approx(weights)


def test_a_veto_sees_ratios_that_weights_are_kept_from() -> None:
    """Weights stay within e^±20; a veto of 1e-12 is below that, and the ratio below the veto."""
    inputs = micro_batch(
        2, 2, old_log_probs=torch.tensor([-31.0, -1.0]), rollout_log_probs=-torch.ones(2), mask=torch.ones(2)
    )
    found = correction_weight(Correction(type="mis", veto=1e-12), inputs)
    assert found.vetoed.tolist() == [1, 0]
    assert found.weight.tolist() == [0, 1]


def test_distillation_pulls_towards_the_teacher() -> None:
    """policy -1, teacher -0.5 on every token: +0.5 · coef, whatever the reward."""
    arrays = build("algorithms", "on_policy_distillation", {"distillation": {"coef": 2}}).advantages(
        [group([1, 0])]
    )
    assert all((array == 1.0).all() for array in arrays)
    plain = build("algorithms", "grpo", {}).advantages([group([1, 0])])
    both = build("algorithms", "grpo", {"distillation": {}}).advantages([group([1, 0])])
    for before, after in zip(plain, both, strict=True):
        np.testing.assert_allclose(after, before + 0.5, rtol=1e-6)


def test_distillation_needs_no_rewards() -> None:
    unscored = group([float("nan"), float("nan"), float("nan")], lengths=[2, 1, 3])
    unscored.samples[1].status = Status.FAILED
    unscored.samples[2].teacher_log_probs = np.array([-0.5, -2.0, -1.0], np.float32)
    algorithm = build("algorithms", "on_policy_distillation", {})
    assert [array.tolist() for array in algorithm.advantages([unscored])] == [[0.5, 0.5], [0], [0.5, -1, 0]]
    whitening = build("algorithms", "on_policy_distillation", {"normalize_advantages": True})
    assert all(np.isfinite(array).all() for array in whitening.advantages([unscored]))


def test_advantages_are_whitened_where_asked() -> None:
    groups = [group([1, 0, 0], lengths=[2, 3, 4]), group([5, 1], lengths=[1, 6])]
    whitened = np.concatenate(build("algorithms", "rloo", {"normalize_advantages": True}).advantages(groups))
    assert whitened.mean() == pytest.approx(0, abs=1e-6)
    assert whitened.std(ddof=1) == pytest.approx(1, abs=1e-6)


def test_truncation_can_bootstrap_the_value_after_the_last_token() -> None:
    one = group([0.0], lengths=[3])
    one.samples[0].status = Status.TRUNCATED
    one.samples[0].values, one.samples[0].value_after = np.array([0.0, 0.0, 0.25], np.float32), 0.5
    returns = {
        bootstrap: build("algorithms", "ppo", {"bootstrap_truncated": bootstrap}).returns([one])[0].tolist()
        for bootstrap in (False, True)
    }
    assert returns == {False: [0, 0, 0], True: [0.5, 0.5, 0.5]}


@pytest.mark.parametrize("divisor", ["n-1", "n"])
def test_the_std_of_a_group_has_the_divisor_and_the_epsilon_of_the_spec(divisor: str) -> None:
    rewards = np.array([1.0, 0.25, -3.0, 0.0])
    algorithm = build("algorithms", "grpo", {"std_divisor": divisor, "std_epsilon": 0.5})
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=int(divisor == "n-1")) + 0.5)
    values = [array[0] for array in algorithm.advantages([group(rewards.tolist())])]
    assert values == pytest.approx(expected, rel=1e-6)
    for others in ({"normalize_std": False}, {"subtract_mean": False}):
        with pytest.raises(PluginError, match="no effect of std_divisor and std_epsilon: adv"):
            build("algorithms", "grpo", {"std_divisor": divisor, "std_epsilon": 0.5, **others})
