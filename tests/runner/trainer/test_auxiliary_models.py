"""Reference, teacher and critic on one rank, and on several in layouts of their own."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rlrun.models.config_json import read_architecture
from rlrun.runner.batches.packing import all_micro_batches, plan_steps
from rlrun.runner.cluster.start_trainer import TrainerRanks
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.rank_layout import check_layout
from rlrun.specs.sections.auxiliary_models import ShardingSpec, auxiliary_layout
from tests.converters.conversions import convert
from tests.converters.families.test_lora import make_adapter
from tests.resolved_specs import resolved
from tests.runner.trainer.trainer_cases import (
    Reference,
    make_branches,
    make_rank,
    make_sequences,
    make_spec,
    plan,
    run_ranks,
)
from tests.tiny_models import make_tiny_model

PPO = {"type": "ppo"}
DISTILLATION = {"type": "on_policy_distillation"}
WITH_REFERENCE = {"type": "grpo", "kl": {"in_loss": {"coef": 0.1}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "qwen3", scale=0.1, pad_token_id=None)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Another architecture with the same tokens."""
    path = tmp_path_factory.mktemp("teacher") / "llama"
    return make_tiny_model(path, "llama", seed=5, num_hidden_layers=3, pad_token_id=None)


@pytest.fixture
def start(folder):
    ranks = []

    def make(algorithm, sections=None, teacher=None, **trainer):
        spec = make_spec(folder, algorithm=algorithm, **trainer)
        spec = resolved(spec.model_dump(exclude_unset=True) | (sections or {}))
        ranks.append(make_rank(folder, spec, teacher=teacher))
        return ranks[-1], spec

    yield make
    for rank in ranks:
        rank.close()


def test_a_teacher_is_the_policys_model_with_a_smaller_adapter(folder, start, tmp_path):
    """An adapter alone, an adapter with a path, and a merged model are the same teacher."""
    names = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.1.mlp.up_proj": (96, 64)}
    adapter, _ = make_adapter(tmp_path / "adapter", names, rank=2)
    merged = convert(folder, "hf", tmp_path / "merged", adapter=adapter)
    lora = {"rank": 4, "alpha": 6, "rslora": True}
    log_probs = []
    for section, path in (
        ({"adapter": str(adapter)}, None),
        ({"adapter": str(adapter), "path": str(folder)}, folder),
        ({"path": str(merged)}, merged),
    ):
        rank, spec = start(DISTILLATION, {"teacher": section}, path, lora=lora)
        sequences = make_sequences()
        batches = all_micro_batches(plan(sequences, spec))
        before = rank.policy.log_probs(sequences, batches)
        log_probs.append(rank.teacher.log_probs(sequences, batches))
        after = rank.policy.log_probs(sequences, batches)
        assert all((before[i] == after[i]).all() for i in before)
    for i in log_probs[0]:
        assert np.abs(log_probs[0][i] - before[i]).max() > 1e-2
        assert (log_probs[1][i] == log_probs[2][i]).all()
        np.testing.assert_allclose(log_probs[0][i], log_probs[2][i], atol=2e-5)


def with_returns(sequences, values, returns=1.0):
    return [
        dataclasses.replace(
            one, values=values[i][:-1], returns=np.full(len(one.loss_mask), returns, np.float32)
        )
        for i, one in enumerate(sequences)
    ]


def test_a_fresh_critic_expects_nothing_and_learns_what_comes(start):
    rank, spec = start(PPO, {"critic": {"lr": 1e-2}})
    sequences = make_sequences()
    steps = plan(sequences, spec)
    values = rank.critic.values(sequences, all_micro_batches(steps))
    assert all(
        not values[i].any() and len(values[i]) == len(one.loss_mask) + 1 for i, one in enumerate(sequences)
    )
    losses = []
    for _ in range(12):
        known = with_returns(sequences, rank.critic.values(sequences, all_micro_batches(steps)))
        (metrics,) = rank.critic.train(known, steps)
        losses.append(metrics["train/value_loss"])
    assert losses[0] == pytest.approx(1.0)
    assert losses[-1] < 0.1
    assert metrics["train/returns"] == pytest.approx(1.0)
    assert metrics["train/critic/lr"] == 1e-2
    assert 0 <= metrics["train/value_clip_frac"] <= 1


def test_the_critic_s_gradient_is_that_of_plain_torch(start, folder):
    rank, spec = start(PPO)
    sequences = make_sequences(4)
    (step,) = plan(sequences, spec)
    head = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    rank.critic._parameters.masters["lm_head.weight"].data.copy_(head)
    values = rank.critic.values(sequences, step.micro_batches)
    known = with_returns(sequences, values, 0.5)
    rank.critic.train(known, [step])
    ours = rank.critic._parameters.masters
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weight = head.clone().requires_grad_()
    for i, one in enumerate(known):
        tokens = torch.from_numpy(one.tokens.astype(np.int64))
        hidden = model.model(input_ids=tokens[None]).last_hidden_state[0]
        theirs = (hidden @ weight.T)[one.prompt_length - 1 :, 0]
        np.testing.assert_allclose(values[i], theirs.detach().numpy(), atol=1e-4)
        squares = (theirs[:-1] - 0.5) ** 2
        (step.scale[i] * (squares * torch.from_numpy(one.loss_mask)).sum()).backward()
    model.lm_head.weight.grad = None
    norm = torch.nn.utils.clip_grad_norm_([*model.model.parameters(), weight], spec.critic.max_grad_norm)
    torch.testing.assert_close(ours["lm_head.weight"].grad, weight.grad, rtol=1e-3, atol=1e-5)
    gate = model.model.layers[0].mlp.gate_proj.weight.grad
    torch.testing.assert_close(ours["layers.0.feed_forward.w1.weight"].grad, gate, rtol=1e-3, atol=1e-5)
    assert norm > 0


def make_setup(spec, sections=None):
    """What the job tells its first rank."""
    values = spec.model_dump(exclude_unset=True)
    for name, section in (sections or {}).items():
        values[name] = values.get(name, {}) | section
    spec = resolved(values)
    job = make_plan(spec)
    ranks = TrainerRanks(None, [], spec, job, folders={"policy": Path("model")}, weights=Path("weights"))
    return ranks._setup(job.ranks[0], "host", ("host", 1))


def test_steps_of_the_critic_alone_do_not_count_in_the_policy_s_schedule(folder):
    falling = {"schedule": "linear", "lr": 1.0, "min_lr_ratio": 0.0}
    spec = make_spec(folder, algorithm=PPO, **falling)
    spec = resolved(spec.model_dump(exclude_unset=True) | {"critic": falling})
    rank = make_rank(folder, spec, optimizer_steps=6, critic_only=2)
    sequences = make_sequences(2)
    steps = plan(sequences, spec)
    known = with_returns(sequences, rank.critic.values(sequences, all_micro_batches(steps)))
    critic = [rank.critic.train(known, steps)[0]["train/critic/lr"] for _ in range(6)]
    policy = [rank.policy.train(sequences, steps)[0]["train/lr"] for _ in range(4)]
    rank.close()
    assert make_setup(spec).critic_only == 0
    assert make_setup(spec, {"critic": {"only_steps": 3}, "trainer": {"steps": 5}}).critic_only == 3
    assert critic == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert policy == pytest.approx([1, 3 / 4, 2 / 4, 1 / 4])


def test_critic_and_policy_do_not_touch_each_other(start):
    rank, spec = start(PPO)
    sequences = make_sequences()
    steps = plan(sequences, spec)
    batches = all_micro_batches(steps)
    log_probs, values = rank.policy.log_probs(sequences, batches), rank.critic.values(sequences, batches)
    rank.critic.train(with_returns(sequences, values), steps)
    for i, after in rank.policy.log_probs(sequences, batches).items():
        np.testing.assert_array_equal(after, log_probs[i])
    values = rank.critic.values(sequences, batches)
    rank.policy.train(sequences, steps)
    for i, after in rank.critic.values(sequences, batches).items():
        np.testing.assert_array_equal(after, values[i])


def test_a_resumed_critic_goes_on_bit_for_bit(start, tmp_path):
    sequences = make_sequences()
    first, spec = start(PPO, {"critic": {"lr": 1e-2, "warmup_steps": 3, "optimizer": "muon"}})
    steps = plan(sequences, spec)

    def train(rank):
        known = with_returns(sequences, rank.critic.values(sequences, all_micro_batches(steps)))
        return rank.critic.train(known, steps)

    train(first)
    first.save(tmp_path / "step")
    second, _ = start(PPO, {"critic": {"lr": 1e-2, "warmup_steps": 3, "optimizer": "muon"}})
    second.load(tmp_path / "step")
    assert [train(second) for _ in range(2)] == [train(first) for _ in range(2)]


def test_a_non_finite_return_stops_the_critic_before_its_weights(start):
    rank, spec = start(PPO)
    sequences = make_sequences()
    steps = plan(sequences, spec)
    values = rank.critic.values(sequences, all_micro_batches(steps))
    with pytest.raises(ArithmeticError, match=r"the loss is nan.*Lower critic\.lr"):
        rank.critic.train(with_returns(sequences, values, float("nan")), steps)
    for i, after in rank.critic.values(sequences, all_micro_batches(steps)).items():
        np.testing.assert_array_equal(after, values[i])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_the_teacher_says_what_transformers_says(start, teacher, dtype):
    rank, spec = start(DISTILLATION, {"teacher": {"path": str(teacher)}}, teacher=teacher, dtype=dtype)
    sequences = make_sequences()
    found = rank.teacher.log_probs(sequences, all_micro_batches(plan(sequences, spec)))
    reference = Reference(teacher, spec)
    with torch.no_grad():
        for i, sequence in enumerate(sequences):
            theirs, _ = reference.log_probs(sequence)
            np.testing.assert_allclose(found[i], theirs.numpy(), atol=1e-4 if dtype == "float32" else 1.0)


@pytest.mark.parametrize("vocabulary", [288, 352], ids=["less padding", "more padding"])
def test_a_teacher_may_have_a_vocabulary_of_another_size(start, tmp_path, vocabulary):
    other = make_tiny_model(tmp_path / "other", vocab=vocabulary)
    rank, spec = start(DISTILLATION, {"teacher": {"path": str(other)}}, teacher=other)
    sequences = make_sequences()
    found = rank.teacher.log_probs(sequences, all_micro_batches(plan(sequences, spec)))
    reference = Reference(other, spec)
    with torch.no_grad():
        for i, sequence in enumerate(sequences):
            known = np.minimum(sequence.tokens, vocabulary - 1)
            theirs, _ = reference.log_probs(dataclasses.replace(sequence, tokens=known))
            np.testing.assert_allclose(found[i], theirs.numpy(), atol=1e-4)


def test_the_reference_can_follow_the_policy_and_is_saved_then(start, tmp_path):
    rank, spec = start(WITH_REFERENCE, {"reference": {"update_interval": 2}})
    sequences = make_sequences()
    steps = plan(sequences, spec)
    batches = all_micro_batches(steps)
    before = rank.reference.log_probs(sequences, batches)
    known = [dataclasses.replace(one, reference_log_probs=before[i]) for i, one in enumerate(sequences)]
    rank.policy.train(known, steps)
    rank.reference.update()
    moved = rank.policy.log_probs(sequences, batches)
    for i, found in rank.reference.log_probs(sequences, batches).items():
        np.testing.assert_array_equal(found, moved[i])
    rank.policy.train(known, steps)
    rank.save(tmp_path / "step")
    resumed, _ = start(WITH_REFERENCE, {"reference": {"update_interval": 2}})
    resumed.load(tmp_path / "step")
    for i, found in resumed.reference.log_probs(sequences, batches).items():
        np.testing.assert_array_equal(found, moved[i])


@pytest.mark.parametrize("budget", [60, 1000])
def test_a_pair_s_loss_is_one_number_whatever_the_micro_batches(start, folder, budget):
    rank, _ = start({"type": "dpo", "beta": 0.5}, max_tokens_per_rank=budget)
    sequences = make_sequences(8)
    settings = {"reduction": "per_sample_mean", "max_length": 512, "max_response_tokens": 64}
    steps = plan_steps(
        sequences, optimizer_steps=1, max_batch_tokens=budget, data_degree=1, together=True, **settings
    )
    batches = all_micro_batches(steps)
    reference = rank.reference.log_probs(sequences, batches)
    known = [dataclasses.replace(one, reference_log_probs=reference[i]) for i, one in enumerate(sequences)]
    (first,) = rank.policy.train(known, steps)
    assert first["train/loss"] == pytest.approx(np.log(2), rel=1e-5)
    policy = rank.policy.log_probs(sequences, batches)
    (second,) = rank.policy.train(known, steps)
    gains = [((policy[i] - reference[i]) * one.loss_mask).sum() for i, one in enumerate(sequences)]
    margins = 0.5 * (np.array(gains[::2]) - np.array(gains[1::2]))
    assert second["train/loss"] == pytest.approx(np.log1p(np.exp(-margins)).mean(), rel=1e-3)
    assert second["train/reward_margin"] == pytest.approx(margins.mean(), rel=1e-3)
    assert second["train/preferred_frac"] == pytest.approx((margins > 0).mean())


def test_nothing_is_loaded_that_the_algorithm_does_not_need(start):
    rank, _ = start({"type": "grpo"})
    assert rank.critic is rank.teacher is rank.reference is None


LAYOUTS = {
    "sharded": ({"tensor": 2}, None, "muon"),
    "split": ({"fsdp": 2}, {"tensor": 2}, "adamw"),
}
"""Of the policy, and of both auxiliary models."""


@pytest.fixture(scope="module")
def auxiliary(folder, teacher, tmp_path_factory):
    """What each of one and of two ranks found, by layout."""
    worker, found = Path(__file__).parent / "auxiliary_models_worker.py", {}
    for size in (1, 2):
        cases = [
            {
                "name": name,
                "policy": str(folder),
                "teacher": str(teacher),
                "parallel": parallel if size == 2 else {},
                "auxiliary": auxiliary if size == 2 else None,
                "optimizer": optimizer,
            }
            for name, (parallel, auxiliary, optimizer) in LAYOUTS.items()
        ]
        out = tmp_path_factory.mktemp(f"ranks-{size}")
        run_ranks(worker, size, cases, out)
        found[size] = [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(size)]
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_auxiliary_models_have_layouts_of_their_own(auxiliary, layout):
    """Sharded beside a tensor-parallel policy, or tensor-parallel beside a sharded one: as on one rank."""
    alone = auxiliary[1][0][layout]
    ranks = [rank[layout] for rank in auxiliary[2]]
    # Muon orthogonalises in bfloat16, in another order on two ranks
    for name, tolerance in (("teacher", 1e-4), ("values", 2e-3)):
        assert ranks[0][name].keys() == alone[name].keys()
        for i, values in ranks[0][name].items():
            np.testing.assert_allclose(values, alone[name][i], atol=tolerance)
    for rank in ranks:
        for before, after in zip(alone["metrics"], rank["metrics"], strict=True):
            assert after == pytest.approx(before, rel=1e-3, abs=1e-5)
    assert json.dumps(ranks[0]["metrics"]) == json.dumps(ranks[1]["metrics"])
    assert sum(rank["mine"] for rank in ranks) == alone["mine"]


def test_an_auxiliary_model_s_layout_that_does_not_divide_is_refused(folder):
    model = read_architecture(folder)
    with pytest.raises(ValueError, match=r"critic\.parallel\.tensor = 3 does not divide num_attention_heads"):
        check_layout(model, auxiliary_layout(ShardingSpec(tensor=3), 3), "critic")


def test_auxiliary_models_share_prefixes(start, teacher):
    """Log-probs of reference and teacher, and values of a trained critic, are those without sharing."""
    sequences = make_branches()
    outputs = []
    for share in (False, True):
        rank, spec = start(DISTILLATION, {"teacher": {"path": str(teacher)}}, teacher, share_prefixes=share)
        batches = all_micro_batches(plan(sequences, spec))
        outputs.append(rank.teacher.log_probs(sequences, batches))
        rank, spec = start(WITH_REFERENCE, share_prefixes=share)
        outputs[-1] |= {f"{i}": own for i, own in rank.reference.log_probs(sequences, batches).items()}
        rank, spec = start(PPO, {"critic": {"lr": 1e-2}}, share_prefixes=share)
        for _ in range(2):
            values = rank.critic.values(sequences, batches)
            rank.critic.train(with_returns(sequences, values), plan(sequences, spec))
        outputs[-1] |= {f"value {i}": own for i, own in rank.critic.values(sequences, batches).items()}
    separate, shared = outputs
    assert len(shared) == len(separate) == 3 * len(sequences)
    for name in separate:
        np.testing.assert_allclose(shared[name], separate[name], atol=2e-4)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A model of the same architecture with other weights, without and with a value head."""
    path = make_tiny_model(tmp_path_factory.mktemp("other") / "qwen3", scale=0.1, seed=7, pad_token_id=None)
    tensors = load_file(path / "model.safetensors")
    tensors["score.weight"] = torch.linspace(-1.0, 1.0, tensors["model.norm.weight"].numel())[None]
    scored = path.with_name("scored")
    shutil.copytree(path, scored)
    save_file(tensors, scored / "model.safetensors", {"format": "pt"})
    return path, scored


def test_the_reference_is_another_model_and_the_policy_keeps_its_own_weights(folder, other):
    path, _ = other
    spec = make_spec(folder, algorithm=WITH_REFERENCE)
    sequences = make_sequences(2)
    batches = all_micro_batches(plan(sequences, spec))
    rank, policy = make_rank(folder, spec, reference=path), make_rank(folder, spec)
    alone = make_rank(path, spec)
    try:
        for index, expected in alone.policy.log_probs(sequences, batches).items():
            np.testing.assert_array_equal(rank.reference.log_probs(sequences, batches)[index], expected)
        for index, expected in policy.policy.log_probs(sequences, batches).items():
            np.testing.assert_array_equal(rank.policy.log_probs(sequences, batches)[index], expected)
    finally:
        for each in (rank, policy, alone):
            each.close()


@pytest.mark.parametrize("has_head", [True, False])
def test_the_critic_starts_from_a_folder_with_its_value_head_if_there_is_one(folder, other, has_head):
    path = other[has_head]
    rank = make_rank(folder, make_spec(folder, algorithm=PPO), critic=path)
    try:
        state, stored = rank.critic.state(), load_file(path / "model.safetensors")
        head = state["parameters.lm_head.weight"]
        assert torch.equal(head, stored["score.weight"] if has_head else torch.zeros_like(head))
        assert torch.equal(state["parameters.norm.weight"], stored["model.norm.weight"])
        assert torch.equal(state["parameters.tok_embeddings.weight"], stored["model.embed_tokens.weight"])
    finally:
        rank.close()
