"""Routing replay: the same experts under other weights, whoever chose them; log-probs and gradients are those
of transformers with its routing forced.
"""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.trainer.parameters.starting_weights import starting_weights
from tests.runner.trainer.trainer_cases import (
    Reference,
    make_rank,
    make_sequences,
    make_spec,
    plan,
    run_ranks,
    split_experts,
)
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("routing_worker.py")
LAYERS, CHOSEN = 3, 2
CASES = [
    {"tensor": 2},
    {"tensor": 2, "expert": 2},
    {"context": 2},
    {"pipeline": 2},
    {"fsdp": 2, "expert": 2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model") / "moe"
    return make_tiny_model(
        place, "qwen3_moe", scale=0.1, num_experts=8, num_hidden_layers=LAYERS, pad_token_id=None
    )


def spec_of(folder, parallel=None, replay="trainer", **trainer):
    return make_spec(folder, parallel, moe={"routing_replay": replay}, **trainer)


def turn_routers(rank):
    """Weights under which every router would choose the experts that it likes least now."""
    with starting_weights(rank._spec, Path(rank._setup.model_folder), rank._architecture) as read:
        rank.policy.parameters.load(lambda one: -read(one) if "mlp.gate." in one.name else read(one))


def noted(rank, sequences, steps):
    """Log-probs, and the experts that were noted."""
    log_probs = rank.policy.log_probs(sequences, all_micro_batches(steps))
    return log_probs, dict(rank.policy._replay._noted)


def replayed(rank, sequences, experts, steps):
    """Log-probs of the policy when tokens go where they are told to, and where they went."""
    told = {i: dataclasses.replace(sequences[i], experts=experts[i]) for i in experts}
    return noted(rank, told, steps)


def force_routing(model, experts):
    """Have a transformers model take these experts `[T, layers × K]`, with its own weights for them."""
    for number, layer in enumerate(model.model.layers):
        chosen = torch.from_numpy(experts[:, number * CHOSEN : (number + 1) * CHOSEN].astype(np.int64))
        layer.mlp.gate.forward = partial(_forced, layer.mlp.gate, chosen)


def _forced(gate, chosen, hidden):
    logits = torch.nn.functional.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight)
    weights = logits.softmax(-1).gather(1, chosen)
    return logits, weights / weights.sum(-1, keepdim=True), chosen


def test_updates_take_the_experts_of_the_pass_before_them(folder):
    spec = spec_of(folder)
    rank, sequences = make_rank(folder, spec), make_sequences()
    steps = plan(sequences, spec)
    before, experts = noted(rank, sequences, steps)
    assert all(len(experts[i]) == len(one.tokens) for i, one in enumerate(sequences))
    turn_routers(rank)
    other, own = noted(rank, sequences, steps)
    assert not any(np.array_equal(own[i], experts[i]) for i in experts)
    told, taken = replayed(rank, sequences, experts, steps)
    assert all(np.array_equal(taken[i], experts[i]) for i in experts)
    reference = Reference(folder, spec)
    for layer in reference.model.model.layers:
        layer.mlp.gate.weight.data.neg_()
    for i, sequence in enumerate(sequences):
        force_routing(reference.model, experts[i])
        theirs, _ = reference.log_probs(sequence)
        np.testing.assert_allclose(told[i], theirs.detach().numpy(), atol=1e-5)
        assert np.abs(told[i] - other[i]).max() > 1e-3
        assert np.abs(told[i] - before[i]).max() > 1e-3
    rank.close()


class ForcedReference(Reference):
    """Each sequence by its own experts."""

    def __init__(self, folder, spec, experts):
        super().__init__(folder, spec)
        self.experts = experts

    def log_probs(self, sequence):
        force_routing(self.model, self.experts[len(sequence.tokens), sequence.tokens.tobytes()])
        return super().log_probs(sequence)


def test_gradients_reach_the_routers_of_the_replayed_experts(folder):
    spec = spec_of(folder)
    rank, sequences = make_rank(folder, spec), make_sequences()
    (step,) = steps = plan(sequences, spec)
    _, experts = noted(rank, sequences, steps)
    turn_routers(rank)
    rank.policy.train(sequences, steps)
    keys = {(len(one.tokens), one.tokens.tobytes()): experts[i] for i, one in enumerate(sequences)}
    reference = ForcedReference(folder, spec, keys)
    for layer in reference.model.model.layers:
        layer.mlp.gate.weight.data.neg_()
    expected = reference.gradients(sequences, step.scale, 0.1)
    total = torch.nn.utils.get_total_norm(list(expected.values()))
    scale = min(1.0, spec.trainer.max_grad_norm / float(total))
    rank.policy.parameters.masters = {name: one.grad for name, one in rank.policy.parameters.masters.items()}
    ours = split_experts(dict(rank.policy.parameters.gather()))
    assert ours["model.layers.0.mlp.gate.weight"].any()
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient * scale, atol=1e-6, rtol=1e-4)


def test_nothing_is_replayed_that_was_not_noted_for_these_updates(folder):
    spec = spec_of(folder)
    sequences = make_sequences()
    metrics = []
    for moe in ("trainer", "off"):
        rank = make_rank(folder, spec_of(folder, replay=moe))
        steps = plan(sequences, spec)
        if moe == "trainer":
            noted(rank, sequences, steps)
        first = rank.policy.train(sequences, steps)
        metrics.append([*first, *rank.policy.train(sequences, steps)])
        assert not rank.policy._replay._noted
        rank.close()
    ours, theirs = ([step["train/grad_norm"] for step in run] for run in metrics)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_an_engines_experts_are_taken_in_every_pass_of_the_policy(folder):
    spec = spec_of(folder, replay="engine", activation_checkpointing="full")
    rank, sequences = make_rank(folder, spec), make_sequences()
    steps = plan(sequences, spec)
    rng = np.random.default_rng(1)
    told = []
    for one in sequences:
        experts = np.stack([rng.permutation(8)[:CHOSEN] for _ in range(len(one.tokens) * LAYERS)])
        experts = experts.reshape(len(one.tokens), -1).astype(np.int16)
        experts[-1] = -1  # an engine does not run the last token that it makes
        told.append(dataclasses.replace(one, experts=experts))
    ours = rank.policy.log_probs(told, all_micro_batches(steps))
    reference = Reference(folder, spec)
    with torch.no_grad():
        for i, one in enumerate(told):
            force_routing(reference.model, np.maximum(one.experts, 0))
            theirs, _ = reference.log_probs(one)
            np.testing.assert_allclose(ours[i], theirs.numpy(), atol=1e-5)
    (metrics,) = rank.policy.train(told, steps)
    assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-7)
    with pytest.raises(ValueError, match="a sample has no experts: its rollout changed"):
        rank.policy.log_probs(sequences, all_micro_batches(steps))
    rank.close()


@pytest.mark.slow
def test_replay_is_the_same_on_every_layout(folder, tmp_path):
    spec = spec_of(folder)
    rank, sequences = make_rank(folder, spec), make_sequences()
    steps = plan(sequences, spec)
    _, experts = noted(rank, sequences, steps)
    turn_routers(rank)
    told, _ = replayed(rank, sequences, experts, steps)
    rank.policy._replay._noted = experts
    (metrics,) = rank.policy.train(sequences, steps)
    torch.save((experts, told, metrics["train/grad_norm"]), tmp_path / "expected.pt")
    rank.close()
    run_ranks(WORKER, 2, [str(folder), str(tmp_path / "expected.pt"), CASES], tmp_path)
