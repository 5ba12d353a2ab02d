"""Compiled layers compute what they compute without, forward and backward."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.trainer.model import build_decoder
from tests.runner.trainer.trainer_cases import (
    Reference,
    make_rank,
    make_sequences,
    make_spec,
    plan,
    run_ranks,
)
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("compiling_worker.py")
FULL = {"activation_checkpointing": "full"}
INTERLEAVED = {"pipeline": 2, "pipeline_schedule": "Interleaved1F1B"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model") / "moe"
    config = {"num_experts": 4, "mlp_only_layers": [0], "pad_token_id": None}
    return make_tiny_model(place, "qwen3_moe", scale=0.1, **config)


@pytest.mark.slow
def test_compiled_layers_agree_with_transformers(folder):
    """One dense layer, one of experts."""
    torch._dynamo.reset()
    spec = make_spec(folder, compile=True, activation_checkpointing="full")
    plain_spec = make_spec(folder)
    rank, plain = make_rank(folder, spec), make_rank(folder, plain_spec)
    sequences = make_sequences(5)
    steps = plan(sequences, spec)
    ours = rank.policy.log_probs(sequences, all_micro_batches(steps))
    reference = Reference(folder, spec)
    with torch.no_grad():
        for i, one in enumerate(sequences):
            np.testing.assert_allclose(ours[i], reference.log_probs(one)[0].numpy(), atol=1e-5)
    (metrics,), (expected,) = rank.policy.train(sequences, steps), plain.policy.train(sequences, steps)
    assert metrics["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-5)
    theirs = dict(plain.policy.parameters.gather())
    for name, tensor in rank.policy.parameters.gather():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=0)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    for one in (rank, plain):
        one.close()


@pytest.mark.slow
def test_experts_that_are_told_and_counted_are_so_in_compiled_layers(folder):
    """Two updates that take over the experts of the pass before them, by a bias that moves."""
    told = {"routing_replay": "trainer", "balancing": "bias", "balancing_rate": 0.1}
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        spec = make_spec(folder, compile=compiled, moe=told)
        rank, sequences = make_rank(folder, spec), make_sequences(6)
        steps = plan(sequences, spec, 2)
        log_probs = rank.policy.log_probs(sequences, all_micro_batches(steps))
        metrics = rank.policy.train(sequences, steps)
        rest = [
            step[f"train/{name}"] for step in metrics for name in ("loss", "grad_norm", "expert_load_max")
        ]
        after = rank.policy.log_probs(sequences, all_micro_batches(steps))
        found.append((log_probs, after, rest))
        rank.close()
    (before, after, numbers), (own_before, own_after, own_numbers) = found
    assert own_numbers == pytest.approx(numbers, rel=1e-4, abs=1e-6)
    for i in before:
        np.testing.assert_allclose(own_before[i], before[i], atol=1e-5)
        np.testing.assert_allclose(own_after[i], after[i], atol=1e-4)


@pytest.mark.slow
def test_layers_are_not_compiled_again_for_other_numbers_of_documents(folder):
    """Under torch 2.11 they were, until torch gave up and ran them uncompiled."""
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters["stats"]
    spec = make_spec(folder, compile=True, max_tokens_per_rank=4000)
    rank = make_rank(folder, spec)
    graphs = []
    for documents in range(3, 13):
        sequences = make_sequences(documents)
        rank.policy.train(sequences, plan(sequences, spec))
        graphs.append(counted["unique_graphs"])
    rank.close()
    assert graphs[0] > 0
    assert graphs[1:] == graphs[:1] * 9


@pytest.mark.parametrize(("on_cpu", "cure"), [(True, "install g\\+\\+"), (False, "needs triton")])
def test_what_is_missing_is_said(monkeypatch, on_cpu, cure):
    monkeypatch.setattr(build_decoder, "ON_CPU", on_cpu)
    monkeypatch.setattr(build_decoder, "find_compiler", lambda: None)
    monkeypatch.setattr(build_decoder, "has_triton", lambda: False)
    with pytest.raises(ValueError, match=cure):
        build_decoder.check_compiler()


def on_ranks(folder, tmp_path, cases):
    """Each case compiled and not, on two ranks."""
    run_ranks(WORKER, 2, [(str(folder), *case) for case in cases], tmp_path)


@pytest.mark.slow
def test_compiled_layers_on_several_ranks(tmp_path):
    folder = make_tiny_model(tmp_path / "qwen3", scale=0.1, num_hidden_layers=4, pad_token_id=None)
    layouts = [{"fsdp": 2}, {"tensor": 2}, {"context": 2}, {"pipeline": 2}]
    cases = [(layout, {}) for layout in layouts]
    cases += [({"pipeline": 2}, FULL), (INTERLEAVED, FULL)]
    on_ranks(folder, tmp_path, cases)


@pytest.mark.slow
def test_compiled_layers_of_experts_on_several_ranks(folder, tmp_path):
    """Experts shared out, the first update's choice of them taken over, their load evened out."""
    told = {"moe": {"routing_replay": "trainer", "balancing": "bias"}}
    cases = [
        ({"fsdp": 2, "expert": 2}, {}),
        ({"tensor": 2, "expert": 2}, FULL),
        ({"fsdp": 2, "expert": 2}, told | FULL),
        ({"pipeline": 2}, told),
    ]
    on_ranks(folder, tmp_path, cases)
