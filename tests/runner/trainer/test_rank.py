import dataclasses
import json
import os
import random
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.trainer.optim.gradients import NonFiniteError
from rlrun.runner.weights.carriers.native.shared_memory import attach
from rlrun.specs.local_code import ALLOW_LOCAL
from tests import drawing_algorithm
from tests.runner.trainer.trainer_cases import Reference, make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "qwen3", scale=0.1, pad_token_id=None)


@pytest.fixture
def start(folder):
    """Make ranks, and close them afterwards."""
    ranks = []

    def make(algorithm=None, model=folder, spec_changes=None, **trainer):
        spec = make_spec(model, algorithm=algorithm, **trainer)
        if spec_changes:
            spec = type(spec).model_validate(spec.model_dump() | spec_changes)
        ranks.append(make_rank(model, spec))
        return ranks[-1], spec

    yield make
    for rank in ranks:
        rank.close()


def train_metrics(metrics):
    return [{name: value for name, value in step.items() if name.startswith("train/")} for step in metrics]


def weights(rank, version=0):
    attached = attach(rank.write_weights(version))
    copies = {name: tensor.clone() for name, tensor in attached.tensors.items()}
    attached.close()
    return copies


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def with_old(sequences, log_probs):
    return [dataclasses.replace(sequence, old_log_probs=log_probs[i]) for i, sequence in enumerate(sequences)]


def test_the_first_of_several_steps_has_ratio_one_and_later_ones_do_not(start):
    rank, spec = start(algorithm={"type": "grpo"})
    sequences = make_sequences()
    steps = plan(sequences, spec, optimizer_steps=3)
    sequences = with_old(sequences, rank.policy.log_probs(sequences, all_micro_batches(steps)))
    first, *later = rank.policy.train(sequences, steps)
    assert first["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert all(abs(metrics["train/approx_kl"]) > 1e-4 for metrics in later)


def test_the_loss_does_not_depend_on_the_split_into_micro_batches_or_the_order(start):
    sequences = make_sequences()
    results = []
    for budget, order in ((60, 1), (1000, 1), (200, -1)):
        rank, spec = start(max_tokens_per_rank=budget)
        chosen = sequences[::order]
        results.append(train_metrics(rank.policy.train(chosen, plan(chosen, spec)))[0])
    for other in results[1:]:
        assert other == pytest.approx(results[0], rel=1e-4, abs=1e-6)


def test_the_same_start_gives_the_same_metrics_bit_for_bit(start):
    sequences = make_sequences()
    runs = []
    for _ in range(2):
        rank, spec = start()
        runs.append([train_metrics(rank.policy.train(sequences, plan(sequences, spec, 2))) for _ in range(2)])
    assert runs[0] == runs[1]


def test_a_resumed_run_goes_on_bit_for_bit(start, tmp_path):
    sequences = make_sequences()
    rank, spec = start(schedule="cosine", warmup_steps=1)
    rank.policy.train(sequences, plan(sequences, spec))
    rank.save(tmp_path / "step")
    rest = [train_metrics(rank.policy.train(sequences, plan(sequences, spec))) for _ in range(2)]
    resumed, _ = start(schedule="cosine", warmup_steps=1)
    resumed.load(tmp_path / "step")
    assert [train_metrics(resumed.policy.train(sequences, plan(sequences, spec))) for _ in range(2)] == rest
    assert same(weights(resumed), weights(rank))


def test_a_loss_that_draws_repeats_and_resumes(start, tmp_path, monkeypatch):
    """Whatever else the process draws in between."""
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    sequences = make_sequences()

    def started(**changes):
        return start(algorithm={"type": f"{drawing_algorithm.__file__}:Drawing"}, spec_changes=changes)

    def train(rank, spec, steps):
        torch.rand(7), np.random.rand(7), random.random()
        return [train_metrics(rank.policy.train(sequences, plan(sequences, spec, 2))) for _ in range(steps)]

    rank, spec = started()
    first = train(rank, spec, 1)
    rank.save(tmp_path / "step")
    rest = train(rank, spec, 2)
    drawn = [update["train/noise"] for updates in first + rest for update in updates]
    assert len(set(drawn)) == len(drawn), "every optimizer step draws its own numbers"
    assert train(*started(), 3) == first + rest
    resumed, _ = started()
    resumed.load(tmp_path / "step")
    assert train(resumed, spec, 2) == rest
    assert train(*started(seed=1), 1)[0][0]["train/noise"] not in drawn


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(start, tmp_path):
    other = make_tiny_model(tmp_path / "other", hidden_size=32)
    foreign, _ = start(model=other)
    foreign.save(tmp_path / "foreign")
    rank, _ = start()
    before = weights(rank)
    with pytest.raises(ValueError, match=r"of another model: parameters.* has shape"):
        rank.load(tmp_path / "foreign")
    assert same(weights(rank, 1), before)
    with pytest.raises(ValueError, match="not a complete checkpoint"):
        rank.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata.tmp"])
def test_a_full_disk_reaches_the_caller_as_what_it_is(start, tmp_path, name):
    """torch's writer of archives would say `unexpected pos 704 vs 598` instead."""
    rank, _ = start()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / name).symlink_to("/dev/full")  # every write fails with ENOSPC
    with pytest.raises(OSError, match="No space left on device"):
        rank.save(tmp_path / "full")
    assert rank.save(tmp_path / "other").keys() == {
        str(tmp_path / "other" / written) for written in ("__0_0.distcp", ".metadata")
    }


def test_exports_what_transformers_loads(start, tmp_path, folder):
    rank, spec = start()
    sequences = make_sequences()
    rank.policy.train(sequences, plan(sequences, spec))
    rank.export_hf(tmp_path / "export")
    assert json.loads((tmp_path / "export" / "config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )
    assert (tmp_path / "export" / "tokenizer.json").exists()
    steps = plan(sequences, spec)
    ours = rank.policy.log_probs(sequences, all_micro_batches(steps))
    with torch.no_grad():
        for i, sequence in enumerate(sequences):
            theirs, _ = Reference(tmp_path / "export", spec).log_probs(sequence)
            np.testing.assert_allclose(ours[i], theirs.numpy(), atol=1e-5)


def test_exports_in_the_precision_of_the_source(start, tmp_path):
    source = make_tiny_model(tmp_path / "half", dtype=torch.bfloat16)
    rank, _ = start(model=source)
    rank.export_hf(tmp_path / "export")
    assert same(load_file(tmp_path / "export" / "model.safetensors"), load_file(source / "model.safetensors"))


def test_random_weights_follow_the_seed(start):
    first, _ = start(spec_changes={"model": {"path": "x", "random_init": True}})
    again, _ = start(spec_changes={"model": {"path": "x", "random_init": True}})
    other, _ = start(spec_changes={"model": {"path": "x", "random_init": True}, "seed": 1})
    assert same(weights(first), weights(again))
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(weights(first)[name], weights(other)[name])
    assert weights(first)[name].std() == pytest.approx(0.1, rel=0.05)


def test_bfloat16_is_near_float32_and_keeps_float32_masters(start):
    sequences = make_sequences()
    exact, spec = start(lr=1e-6)
    rank, _ = start(lr=1e-6, dtype="bfloat16")
    steps = plan(sequences, spec)
    theirs = exact.policy.log_probs(sequences, all_micro_batches(steps))
    for i, log_probs in rank.policy.log_probs(sequences, all_micro_batches(steps)).items():
        np.testing.assert_allclose(log_probs, theirs[i], atol=0.2)
    before = weights(rank)
    (metrics,), (expected,) = rank.policy.train(sequences, steps), exact.policy.train(sequences, steps)
    assert metrics["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=0.05)
    # a step far below bfloat16's resolution still moves the weights
    after = weights(rank, 1)
    changed = [not torch.equal(before[name], after[name]) for name in before]
    assert all(changed)


def test_the_reference_keeps_its_weights_and_is_the_policy_at_first(start):
    rank, spec = start(algorithm={"type": "grpo", "kl": {"in_loss": {"type": "low_var_kl", "coef": 0.1}}})
    sequences = make_sequences()
    steps = plan(sequences, spec)
    batches = all_micro_batches(steps)
    start_log_probs = rank.policy.log_probs(sequences, batches)
    reference = rank.reference.log_probs(sequences, batches)
    sequences = [
        dataclasses.replace(sequence, reference_log_probs=reference[i])
        for i, sequence in enumerate(sequences)
    ]
    (metrics,) = rank.policy.train(sequences, steps)
    assert metrics["train/kl_loss"] < 1e-8
    after = rank.policy.log_probs(sequences, batches)
    again = rank.reference.log_probs(sequences, batches)
    for i in range(len(sequences)):
        np.testing.assert_array_equal(again[i], start_log_probs[i])
        assert np.abs(after[i] - start_log_probs[i]).max() > 1e-4


def test_demonstrations_need_neither_rollout_nor_ratio(start):
    rank, spec = start(algorithm={"type": "sft"}, lr=1e-3, global_batch_size=4)
    sequences = make_sequences()
    losses = [rank.policy.train(sequences, plan(sequences, spec))[0] for _ in range(4)]
    assert losses[-1]["train/loss"] < losses[0]["train/loss"]
    assert not any("rollout" in name or "kl" in name for name in losses[0])


def test_what_is_compiled_is_kept_where_no_other_user_can_write(start, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    start()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder == tmp_path / "cache" / "inductor"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def poisoned(sequences):
    bad = np.full(len(sequences[0].advantages), np.nan, np.float32)
    return [dataclasses.replace(sequences[0], advantages=bad), *sequences[1:]]


def test_a_non_finite_loss_stops_before_the_weights(start):
    rank, spec = start()
    before = weights(rank)
    sequences = poisoned(make_sequences())
    with pytest.raises(NonFiniteError, match="optimizer step 1: the loss is nan"):
        rank.policy.train(sequences, plan(sequences, spec))
    assert same(weights(rank, 1), before)


def test_a_non_finite_gradient_names_the_parameter(start, install_plugin):
    install_plugin(
        "algorithms",
        "broken",
        "broken:Broken",
        """
        from rlrun.plugins.types import LossOutputs, Needs
        from rlrun.specs.sections.section import Section

        class Broken:
            Params = Section
            api_version = 1
            needs = Needs()
            def __init__(self, params): pass
            def advantages(self, groups): return []
            def loss(self, inputs):
                # finite, with an infinite slope at 0
                return LossOutputs((inputs.log_probs - inputs.log_probs.detach()).abs().sqrt(), {})
        """,
    )
    rank, spec = start(algorithm={"type": "broken"})
    before = weights(rank)
    sequences = make_sequences()
    with pytest.raises(NonFiniteError, match=r"gradient of tok_embeddings.weight, .* is not finite"):
        rank.policy.train(sequences, plan(sequences, spec))
    assert same(weights(rank, 1), before)


def test_non_finite_steps_can_be_skipped_and_counted(start):
    rank, spec = start(non_finite="skip")
    before = weights(rank)
    sequences = make_sequences()
    (bad,) = rank.policy.train(poisoned(sequences), plan(sequences, spec))
    assert bad["train/skipped_steps"] == 1
    assert all(np.isfinite(value) for value in bad.values())
    assert same(weights(rank, 1), before)
    (good,) = rank.policy.train(sequences, plan(sequences, spec))
    assert good["train/skipped_steps"] == 0


def test_tokens_and_times_are_reported(start):
    rank, spec = start()
    sequences = make_sequences()
    (metrics,) = rank.policy.train(sequences, plan(sequences, spec))
    assert metrics["train/tokens"] == sum(len(sequence.tokens) for sequence in sequences)
    assert metrics["train/response_tokens"] == sum(sequence.loss_mask.sum() for sequence in sequences)
    assert {"perf/forward_time", "perf/backward_time", "perf/optimizer_time"} <= metrics.keys()


def test_prompts_alone_make_no_gradient(start):
    rank, spec = start()
    sequences = [
        dataclasses.replace(sequence, loss_mask=np.zeros_like(sequence.loss_mask))
        for sequence in make_sequences(3)
    ]
    (metrics,) = rank.policy.train(sequences, plan(sequences, spec))
    assert metrics["train/loss"] == metrics["train/grad_norm"] == 0


def test_the_ratio_can_be_taken_to_the_engine(start):
    rank, spec = start(old_log_probs="rollout", reduction="per_token", algorithm={"type": "grpo"})
    sequences = make_sequences()
    steps = plan(sequences, spec)
    log_probs = rank.policy.log_probs(sequences, all_micro_batches(steps))
    (metrics,) = rank.policy.train(sequences, steps)
    gaps = [
        (sequence.rollout_log_probs - log_probs[i])[sequence.loss_mask > 0]
        for i, sequence in enumerate(sequences)
    ]
    assert metrics["train/approx_kl"] == pytest.approx(np.concatenate(gaps).mean(), rel=1e-4)
    apart = np.abs(np.concatenate(gaps)).mean()
    assert metrics["train/train_rollout_logprob_abs_diff"] == pytest.approx(apart, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.75])
def test_old_log_probs_can_be_between_the_engine_s_and_the_policy_s(start, share):
    """A-3PO: log prox = log behave + alpha (log theta - log behave); alpha = 0 is the engine's."""
    rank, spec = start(old_log_probs="interpolated", reduction="per_token", algorithm={"type": "grpo"})
    sequences = [
        dataclasses.replace(one, proximal_share=np.full(len(one.loss_mask), share, np.float32))
        for one in make_sequences()
    ]
    steps = plan(sequences, spec)
    log_probs = rank.policy.log_probs(sequences, all_micro_batches(steps))
    (metrics,) = rank.policy.train(sequences, steps)
    gaps = [
        (sequence.rollout_log_probs - log_probs[i])[sequence.loss_mask > 0]
        for i, sequence in enumerate(sequences)
    ]
    expected = (1 - share) * np.concatenate(gaps).mean()
    assert metrics["train/approx_kl"] == pytest.approx(expected, rel=1e-4)
    apart = np.abs(np.concatenate(gaps)).mean()
    assert metrics["train/train_rollout_logprob_abs_diff"] == pytest.approx(apart, rel=1e-4)


def test_a_sample_without_a_response_only_counts(start):
    rank, spec = start(algorithm={"type": "grpo"})
    sequences = make_sequences(4)
    empty = dataclasses.replace(
        sequences[0],
        tokens=sequences[0].tokens[: sequences[0].prompt_length],
        **{name: np.zeros(0, np.float32) for name in ("loss_mask", "advantages", "rollout_log_probs")},
        execution="without",
    )
    (whole,) = rank.policy.train(sequences, plan(sequences, spec))
    rank, spec = start(algorithm={"type": "grpo"}, max_tokens_per_rank=1)
    both = [*sequences, empty]
    assert len(rank.policy.log_probs(both, all_micro_batches(plan(both, spec)))[4]) == 0
    (found,) = rank.policy.train(both, plan(both, spec))
    for name in ("train/loss", "train/grad_norm", "train/entropy"):
        assert found[name] == pytest.approx(whole[name] * 2 / 3, rel=1e-4)


def test_tokens_that_are_not_trained_cannot_make_the_loss_infinite(start):
    """k3 overflows where the policy would not have written what the reference expects: in tools' answers."""
    kl = {"in_loss": {"type": "k3", "coef": 0.1, "unbiased": True}}
    found = []
    for far in (0.0, 200.0):
        rank, spec = start(algorithm={"type": "grpo", "kl": kl})
        sequences = [
            dataclasses.replace(
                sequence,
                reference_log_probs=np.where(sequence.loss_mask > 0, -3.0, far).astype(np.float32),
                rollout_log_probs=np.where(sequence.loss_mask > 0, -3.0, -far).astype(np.float32),
            )
            for sequence in make_sequences()
        ]
        assert any((sequence.loss_mask == 0).any() for sequence in sequences)
        found += train_metrics(rank.policy.train(sequences, plan(sequences, spec)))
    assert found[0] == pytest.approx(found[1])


def test_another_run_starts_with_the_weights_of_a_checkpoint_and_with_its_optimizer_if_asked(start, tmp_path):
    rank, spec = start(schedule="linear")
    sequences = make_sequences()
    steps = plan(sequences, spec)
    rank.policy.train(sequences, steps)
    rank.save(tmp_path)
    trained = weights(rank)

    begun = {}
    for optimizer in (True, False):
        other, _ = start(schedule="linear")
        other.load_start(tmp_path, optimizer)
        assert same(weights(other), trained)
        [metrics] = other.policy.train(sequences, steps)
        assert metrics["train/lr"] == spec.trainer.lr  # its schedule begins anew
        begun[optimizer] = weights(other, 1)
    assert not same(begun[True], begun[False])

    resumed, _ = start(schedule="linear")
    resumed.load(tmp_path)
    assert resumed.policy.train(sequences, steps)[0]["train/lr"] < spec.trainer.lr


def test_a_start_without_the_optimizer_takes_checkpoints_of_other_optimizers(start, tmp_path):
    rank, _ = start(optimizer="sgd")
    rank.save(tmp_path)
    other, _ = start()
    other.load_start(tmp_path, False)
    assert same(weights(other), weights(rank))
    with pytest.raises(ValueError, match=r"was saved with another trainer\.optimizer"):
        other.load_start(tmp_path, True)


def test_a_rank_without_optimizer_state_saves_and_continues(start, tmp_path):
    rank, spec = start(optimizer="adamw_stateless")
    sequences = make_sequences()
    steps = plan(sequences, spec)
    rank.policy.train(sequences, steps)
    rank.save(tmp_path)
    resumed, _ = start(optimizer="adamw_stateless")
    resumed.load(tmp_path)
    for each in (rank, resumed):
        each.policy.train(sequences, steps)
    assert same(weights(rank, 1), weights(resumed, 1))


def test_an_optimizer_that_is_reset_takes_every_step_as_its_first(start, tmp_path):
    kept, spec = start()
    reset, _ = start(reset_optimizer="rollout")
    sequences = make_sequences()
    steps = plan(sequences, spec)
    for rank in (kept, reset):
        rank.policy.train(sequences, steps)
    assert same(weights(kept), weights(reset))
    kept.save(tmp_path)
    fresh, _ = start()
    fresh.load_start(tmp_path, False)
    for rank in (kept, reset, fresh):
        rank.policy.train(sequences, steps)
    assert same(weights(reset, 1), weights(fresh, 1))
    assert not same(weights(reset, 2), weights(kept, 2))
