from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.loss_pass import LossPass
from rlrun.runner.trainer.passes.meter import Meter, read
from rlrun.runner.trainer.passes.packed_batch import make_loss_batch
from rlrun.runner.trainer.passes.stopwatch import Stopwatch
from rlrun.runner.trainer.passes.token_losses import token_losses
from tests.resolved_specs import resolved_trainer

CPU = torch.device("cpu")


class Stage:
    """One stage of a pipeline: only the last has losses."""

    def __init__(self, last):
        self.has_losses = last

    def accumulate(self, batches, loss_of, entropy_grad, stopwatch):
        if self.has_losses:
            for index, sequences in enumerate(batches):
                values = torch.full((sum(len(one.loss_mask) for one in sequences),), -2.0)
                loss_of(index, values, values, None, values)


def metrics(last, batches, algorithm):
    loss = LossPass(Stage(last), algorithm, resolved_trainer(steps=1), CPU)
    meter = Meter()
    loss.accumulate(batches, [[1.0] * len(batch) for batch in batches], {}, meter, Stopwatch(CPU))
    return read(meter.reduced(True, CPU), CPU)


def sequence(**known):
    ones = np.ones(2, np.float32)
    return TrainSequence(np.arange(3, dtype=np.int32), 1, ones, ones, -ones, "a", **known)


@pytest.mark.parametrize(
    ("name", "params", "known"),
    [
        ("grpo", {}, {}),
        ("grpo", {"entropy_coef": 0.1, "kl": {"in_loss": {"coef": 0.1}}}, {"reference_log_probs": -2.0}),
        ("sft", {}, {}),
        ("gkd", {}, {}),
    ],
)
def test_every_stage_of_a_pipeline_reports_the_same_names(name, params, known):
    """The ranks reduce their metrics as one vector, and do not ask each other for names."""
    algorithm = build("algorithms", name, params)
    known = {key: np.full(2, value, np.float32) for key, value in known.items()}
    last = metrics(True, [[sequence(**known)], []], algorithm)
    first = metrics(False, [[sequence(**known)], []], algorithm)
    assert first.keys() == last.keys()
    assert last["train/tokens"] == 3
    assert set(first.values()) == {0.0}


def test_a_divergence_counts_on_trained_tokens_alone():
    """A plugin's divergence may be infinite on a token that the policy would never have written."""
    half_trained = replace(sequence(), loss_mask=np.array([1, 0], np.float32))
    batch = make_loss_batch([half_trained], [1.0], False, CPU)
    log_probs, divergence = -torch.ones(2), torch.tensor([2.0, torch.inf], requires_grad=True)
    result = token_losses(
        build("algorithms", "gkd", {}),
        batch,
        log_probs,
        log_probs,
        log_probs,
        step_values={},
        divergence=divergence,
    )
    (result.loss * batch.weights).sum().backward()
    assert result.loss.tolist() == [2.0, 0.0]
    assert divergence.grad.tolist() == [1.0, 0.0]
