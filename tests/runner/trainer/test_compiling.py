"""Compiled layers compute what they compute without, forward and backward."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import make_tiny_model
from trainer_cases import Reference, make_rank, make_sequences, make_spec, plan, run_ranks

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.trainer import compiling

WORKER = Path(__file__).with_name("compiling_worker.py")


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
    ours = rank.log_probs(sequences, all_micro_batches(steps))
    reference = Reference(folder, spec)
    with torch.no_grad():
        for i, one in enumerate(sequences):
            np.testing.assert_allclose(ours[i], reference.log_probs(one)[0].numpy(), atol=1e-5)
    (metrics,), (expected,) = rank.train(sequences, steps), plain.train(sequences, steps)
    assert metrics["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-5)
    theirs = dict(plain._parameters.gather())
    for name, tensor in rank._parameters.gather():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=0)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    for one in (rank, plain):
        one.close()


@pytest.mark.parametrize(("on_cpu", "cure"), [(True, "install g\\+\\+"), (False, "needs triton")])
def test_what_is_missing_is_said(monkeypatch, on_cpu, cure):
    monkeypatch.setattr(compiling, "ON_CPU", on_cpu)
    monkeypatch.setattr(compiling, "find_compiler", lambda: None)
    monkeypatch.setattr(compiling, "has_triton", lambda: False)
    with pytest.raises(ValueError, match=cure):
        compiling.check_compiler()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of compilers, on a busy machine
def test_compiled_layers_on_several_ranks(tmp_path):
    folder = make_tiny_model(tmp_path / "qwen3", scale=0.1, pad_token_id=None)
    layouts = [{"fsdp": 2}, {"tensor": 2}, {"context": 2}, {"pipeline": 2}]
    run_ranks(WORKER, 2, [str(folder), layouts], tmp_path, timeout=1500)
