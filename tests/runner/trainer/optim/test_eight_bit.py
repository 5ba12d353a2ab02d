"""Optimizer state in 8 bits: torchao's own steps bit for bit, also in host memory and after a checkpoint."""

import pytest
import torch
from torch import nn
from torchao.optim import AdamW8bit

from rlrun.runner.trainer.optim import eight_bit
from rlrun.runner.trainer.optim.eight_bit import EightBitAdamW, empty_moments
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.specs.sections.optimizer import OptimizerSpec

SHAPES = {
    "layers.0.attention.wo.weight": (24, 512),  # two blocks per row
    "tok_embeddings.weight": (64, 160),  # blocks cross rows
    "layers.0.moe.experts.w1_EFD": (3, 8, 256),
    "layers.0.attention.wq.weight": (30, 145),  # not a whole number of blocks
    "norm.weight": (64,),
}
EIGHT_BITS = set(list(SHAPES)[:3])
SPEC = OptimizerSpec(optimizer="adamw_8bit", weight_decay=0.2)


def make_parameters():
    generator = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def steps(optimizer, parameters, count=3):
    generator = torch.Generator().manual_seed(1)
    for number in range(count):
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(0.1 / (number + 1))


class Torchao:
    """torchao's optimizer, with the interface of ours."""

    def __init__(self, parameters):
        groups = [
            {"params": [parameter], "weight_decay": 0.2 if parameter.ndim > 1 else 0.0}
            for parameter in parameters.values()
        ]
        self.optimizer = AdamW8bit(groups, betas=SPEC.betas, eps=SPEC.eps)

    def step(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"].fill_(rate)
        with torch.compiler.set_stance("force_eager"):
            self.optimizer.step()


@pytest.mark.parametrize("on_host", [False, True])
def test_takes_torchaos_steps(on_host, monkeypatch):
    monkeypatch.setattr(eight_bit, "PIECE", 2048)  # several pieces per parameter, the last one smaller
    ours, theirs = make_parameters(), make_parameters()
    optimizer, reference = Optimizer(SPEC, ours, on_host=on_host), Torchao(theirs)
    steps(optimizer, ours)
    steps(reference, theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in SHAPES)
    tensors = optimizer.tensors()
    for name, parameter in theirs.items():
        state = reference.optimizer.state[parameter]
        for moment in ("exp_avg", "exp_avg_sq"):
            if name in EIGHT_BITS:
                assert torch.equal(tensors[f"{moment}_codes.{name}"], state[moment].codes)
                assert torch.equal(tensors[f"{moment}_scales.{name}"].view(-1), state[moment].scale)
            else:
                assert torch.equal(tensors[f"{moment}.{name}"], state[moment])


def test_large_matrices_take_two_bytes_per_value():
    (parameter,) = [nn.Parameter(torch.zeros(64, 1024))]
    moments = empty_moments(parameter)
    assert sum(tensor.nbytes for tensor in moments.values()) == 2 * (64 * 1024 + 4 * 64 * 4)


def test_a_parameter_without_gradient_stays():
    parameters = make_parameters()
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimizer = Optimizer(SPEC, parameters)
    optimizer.step(0.1)
    assert all(torch.equal(parameters[name], before[name]) for name in SHAPES)
    assert isinstance(optimizer.optimizers[0], EightBitAdamW)
    assert optimizer.updates == 0
