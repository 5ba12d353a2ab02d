"""Each optimizer takes the step that its definition says, and remembers it in a checkpoint."""

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.runner.trainer.optim import muon
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.specs.sections.optimizer import OptimizerSpec
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model


def parameters():
    """By torchtitan's names: a hidden matrix, the embedding, a norm."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"layers.0.attention.wo.weight": (8, 6), "tok_embeddings.weight": (10, 6), "norm.weight": (6,)}
    made = {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}
    for one in made.values():
        one.grad = torch.randn(one.shape, generator=generator)
    return made


def test_sgd_has_momentum_and_decays_matrices_apart_from_it():
    spec = OptimizerSpec(optimizer="sgd", momentum=0.9, weight_decay=0.5)
    ours = parameters()
    expected = {name: one.detach().clone() for name, one in ours.items()}
    optimizer = Optimizer(spec, ours)
    for velocity in (1.0, 1.9):  # the same gradient twice
        optimizer.step(0.1)
        for name, value in expected.items():
            decayed = value * (1 - 0.1 * 0.5) if value.ndim > 1 else value
            expected[name] = decayed - 0.1 * velocity * ours[name].grad
    for name, one in ours.items():
        torch.testing.assert_close(one.detach(), expected[name])


def test_adamw_without_state_takes_every_step_as_adamw_s_first():
    ours, theirs = parameters(), parameters()
    stateless = Optimizer(OptimizerSpec(optimizer="adamw_stateless", weight_decay=0.5), ours)
    reset = Optimizer(OptimizerSpec(weight_decay=0.5), theirs)
    for number in range(3):
        for one, other in zip(ours.values(), theirs.values(), strict=True):
            one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(number))
            other.grad = one.grad.clone()
        stateless.step(0.1)
        reset.step(0.1)
        reset.reset()
    for name, one in ours.items():
        torch.testing.assert_close(one, theirs[name])
    assert stateless.tensors() == {} and stateless.held == []


def test_muon_moves_hidden_matrices_along_orthogonal_directions_and_leaves_the_rest_to_adamw():
    ours, adamw = parameters(), parameters()
    before = ours["layers.0.attention.wo.weight"].detach().clone()
    Optimizer(OptimizerSpec(optimizer="muon", weight_decay=0.0), ours).step(0.1)
    Optimizer(OptimizerSpec(weight_decay=0.0), adamw).step(0.1)
    for name in ("tok_embeddings.weight", "norm.weight"):
        torch.testing.assert_close(ours[name], adamw[name])
    moved = (before - ours["layers.0.attention.wo.weight"].detach()) / (0.1 * 0.2 * 8**0.5)
    singular = torch.linalg.svdvals(moved)
    assert singular.min() > 0.5 and singular.max() < 1.5


EXPERTS = "layers.0.moe.routed_experts.inner_experts.w1_EFD"


@pytest.mark.parametrize("shape", [(5, 24, 16), (5, 16, 24), (3, 16, 16), (1, 8, 40)])
@pytest.mark.parametrize("small_chunks", [False, True])
def test_muon_steps_with_each_expert_as_torch_does_with_a_matrix(shape, small_chunks, monkeypatch):
    if small_chunks:
        monkeypatch.setattr(muon, "_CHUNK_NUMBERS", 2 * shape[1] * shape[2])
    torch.manual_seed(0)
    stack = nn.Parameter(torch.randn(shape))
    matrices = [nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    spec = OptimizerSpec(optimizer="muon", momentum=0.9, weight_decay=0.2)
    ours = Optimizer(spec, {EXPERTS: stack})
    theirs = torch.optim.Muon(matrices, momentum=0.9, weight_decay=0.2, adjust_lr_fn="match_rms_adamw", lr=1)
    for rate in (0.1, 0.05, 0.1):
        # gradients of very different sizes, which one norm for the whole stack would mix
        stack.grad = torch.randn(shape) * 10.0 ** torch.arange(shape[0]).view(-1, 1, 1)
        for matrix, gradient in zip(matrices, stack.grad, strict=True):
            matrix.grad = gradient.clone()
        ours.step(rate)
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
    torch.testing.assert_close(stack.detach(), torch.stack([m.detach() for m in matrices]), atol=2e-3, rtol=0)


def test_muon_leaves_biases_of_experts_and_convolutions_to_adamw():
    shapes = {
        "layers.0.moe.routed_experts.inner_experts.mlp1_bias_EG": (4, 6),
        "layers.0.attention.conv1d.weight": (8, 1, 4),
    }
    generator = torch.Generator().manual_seed(0)
    runs = []
    for name in ("muon", "adamw"):
        ours = {key: nn.Parameter(torch.zeros(shape)) for key, shape in shapes.items()}
        for each in ours.values():
            each.grad = torch.randn(each.shape, generator=generator.manual_seed(0))
        Optimizer(OptimizerSpec(optimizer=name), ours).step(0.1)
        runs.append(ours)
    for key in shapes:
        torch.testing.assert_close(runs[0][key], runs[1][key])


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_state_is_complete_before_the_first_step(name):
    ours = parameters()
    tensors = Optimizer(OptimizerSpec(optimizer=name), ours).tensors()
    assert {key.partition(".")[2] for key in tensors} == ours.keys()
    assert not any(value.any() for value in tensors.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "qwen3", scale=0.1, pad_token_id=None)


@pytest.fixture
def start(folder):
    ranks = []

    def make(**trainer):
        spec = make_spec(folder, algorithm={"type": "grpo"}, **trainer)
        ranks.append(make_rank(folder, spec))
        return ranks[-1], spec

    yield make
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("name", ["sgd", "muon", "adamw_8bit"])
def test_a_resumed_run_goes_on_bit_for_bit(start, tmp_path, name):
    sequences = make_sequences()
    rank, spec = start(optimizer=name)
    rank.policy.train(sequences, plan(sequences, spec))
    rank.save(tmp_path / "step")
    resumed, _ = start(optimizer=name)
    resumed.load(tmp_path / "step")
    runs = [[one.policy.train(sequences, plan(sequences, spec))[0]["train/grad_norm"] for _ in range(3)]
            for one in (rank, resumed)]  # fmt: skip
    assert runs[0] == runs[1]


def test_a_checkpoint_of_another_optimizer_is_refused(start, tmp_path):
    rank, _ = start(optimizer="adamw")
    rank.save(tmp_path / "step")
    resumed, _ = start(optimizer="adamw_8bit")
    reason = "trainer.optimizer: it lacks exp_avg_codes.tok_embeddings.weight"
    with pytest.raises(ValueError, match=reason):
        resumed.load(tmp_path / "step")


def test_frozen_parameters_stay_and_the_rest_moves(start, tmp_path):
    sequences = make_sequences()
    rank, spec = start(freeze=("model.embed_tokens.*", "model.layers.0.*", "*_norm.weight"))
    before = {name: one.detach().clone() for name, one in rank.policy.parameters.masters.items()}
    (metrics,) = rank.policy.train(sequences, plan(sequences, spec))
    assert metrics["train/grad_norm"] > 0
    moved = {
        name for name, one in rank.policy.parameters.masters.items() if not torch.equal(one, before[name])
    }
    assert moved == {
        name
        for name in before
        if not name.startswith(("tok_embeddings", "layers.0."))
        and "q_norm" not in name
        and "k_norm" not in name
    }
    rank.save(tmp_path / "step")
    resumed, _ = start(freeze=("model.embed_tokens.*", "model.layers.0.*", "*_norm.weight"))
    resumed.load(tmp_path / "step")
    for name, one in resumed.policy.parameters.masters.items():
        np.testing.assert_array_equal(
            one.detach().numpy(), rank.policy.parameters.masters[name].detach().numpy()
        )


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (("model.embeddings.*",), r'"model.embeddings.\*" matches no parameter'),
        (("*",), "matches every parameter"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(start, patterns, message):
    with pytest.raises(ValueError, match=message):
        start(freeze=patterns)
