"""The cross-entropy of tokens with weights, beside the policy gradient: value and gradient in float64."""

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.runner.batches.packing import Cost, plan_steps
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.loss_pass import LossPass
from rlrun.runner.trainer.passes.meter import Meter, read
from rlrun.runner.trainer.passes.stopwatch import Stopwatch
from tests.resolved_specs import resolved_trainer

CPU = torch.device("cpu")
MASKS = ["1100110", "11", "01101", "000", ""]
"""Several turns with tokens of the environment between them; no trained token; an empty sample."""
WEIGHTS: list[list[float]] = [[0, 0, 0.5, 0.25, 0, 0, 2], [0, 0], [1, 0, 0, 1, 0], [1, 1, 0.5], []]
"""One of them is on a token that the policy made."""
LONGEST = 16


class Head:
    """A model of one rank or stage: its log-probs, and the gradient that they get."""

    def __init__(self, log_probs: list[torch.Tensor], last: bool = True) -> None:
        self.log_probs, self.has_losses = log_probs, last

    def accumulate(self, batches, loss_of, entropy_grad, stopwatch):
        if self.has_losses:
            for index, sequences in enumerate(batches):
                own = [self.log_probs[int(one.execution)] for one in sequences]
                values = torch.cat([torch.zeros(0, dtype=torch.float64), *own])
                loss_of(index, values, values.detach()).backward()


def sequences(*, weighted: bool) -> list[TrainSequence]:
    made = []
    for number, (bits, weights) in enumerate(zip(MASKS, WEIGHTS, strict=True)):
        mask = np.array([float(bit) for bit in bits], np.float32)
        advantages = np.full(len(mask), 0.5 * number - 1, np.float32)
        tokens = np.arange(2 + len(mask), dtype=np.int32)
        cross_entropy = np.array(weights, np.float32) if weighted else None
        old = np.full(len(mask), -2.0, np.float32)
        made.append(
            TrainSequence(tokens, 2, mask, advantages, -mask, str(number), old, cross_entropy=cross_entropy)
        )
    return made


def log_probs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [
        (-2 + torch.randn(len(bits), generator=generator, dtype=torch.float64) / 4).requires_grad_()
        for bits in MASKS
    ]


def run(head: Head, made: list[TrainSequence], reduction: str) -> tuple[dict[str, float], list[float]]:
    """Returns the metrics of a step with two micro-batches or more, and the scale of each sequence."""
    [step] = plan_steps(
        made,
        optimizer_steps=1,
        data_degree=1,
        max_batch_tokens=12,
        reduction=reduction,
        max_response_tokens=LONGEST,
        max_length=32,
        cost=Cost(),
    )
    [batches] = step.micro_batches
    assert step.has_cross_entropy == (made[0].cross_entropy is not None)
    meter = Meter()
    LossPass(head, build("algorithms", "grpo", {}), resolved_trainer(steps=1), CPU).accumulate(
        [[made[index] for index in batch] for batch in batches],
        [[step.scale[index] for index in batch] for batch in batches],
        step.values,
        meter,
        Stopwatch(CPU),
        has_cross_entropy=step.has_cross_entropy,
    )
    values = meter.reduced(True, CPU)
    meter.check_declared(values)
    return read(values, CPU), [step.scale[number] for number in range(len(made))]


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
def test_it_adds_to_the_loss_and_leaves_the_policy_gradient_and_its_denominators(reduction: str) -> None:
    alone, both = log_probs(), log_probs()
    before, scales = run(Head(alone), sequences(weighted=False), reduction)
    after, same_scales = run(Head(both), sequences(weighted=True), reduction)
    assert scales == same_scales
    added = 0.0
    for number, weights in enumerate(WEIGHTS):
        weight = scales[number] * torch.tensor(weights, dtype=torch.float64)
        added -= float((weight * both[number].detach()).sum())
        gradient = torch.zeros_like(weight) if alone[number].grad is None else alone[number].grad
        got = torch.zeros_like(weight) if both[number].grad is None else both[number].grad
        torch.testing.assert_close(got, gradient - weight, rtol=1e-6, atol=1e-9)
    assert after["train/ce_loss"] == pytest.approx(added, rel=1e-6)
    assert after["train/loss"] == pytest.approx(before["train/loss"] + added, rel=1e-6)
    assert after["train/ce_tokens"] == 3 + 2 + 3
    unchanged = before.keys() - {"train/loss"}
    assert {name: after[name] for name in unchanged} == {name: before[name] for name in unchanged}
    assert after.keys() - before.keys() == {"train/ce_loss", "train/ce_tokens"}


def test_a_stage_without_losses_reports_the_same_names() -> None:
    """The ranks reduce their metrics as one vector, and do not ask each other for names."""
    last, _ = run(Head(log_probs()), sequences(weighted=True), "per_token")
    first, _ = run(Head([], last=False), sequences(weighted=True), "per_token")
    assert first.keys() == last.keys()
    assert set(first.values()) == {0.0}
