"""Engines that would be sent the frozen model after training are noticed."""

import pytest
import torch

from rlrun.runner.trainer.parameters.gathering import Gathering
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model


def make_trainer(tmp_path, lora_sync):
    folder = make_tiny_model(tmp_path / "model", "qwen3", pad_token_id=None)
    spec = make_spec(folder, lora={"rank": 2, "alpha": 4})
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"lora_sync": lora_sync})})
    return make_rank(folder, spec)


@pytest.fixture
def trainer(tmp_path):
    rank = make_trainer(tmp_path, "merged")
    yield rank
    rank.close()


@pytest.fixture
def adapters_alone(tmp_path):
    rank = make_trainer(tmp_path, "adapters")
    yield rank
    rank.close()


def train(trainer):
    sequences = make_sequences(4)
    trainer.policy.train(sequences, plan(sequences, trainer._spec))


def test_merged_weights_that_follow_the_adapters_are_sent(trainer):
    trainer.write_weights(0)
    trainer.write_weights(1)
    train(trainer)
    trainer.write_weights(2)


def test_the_frozen_model_is_not_sent_for_trained_adapters(trainer, monkeypatch):
    """As in verl's issue 7495, where each update sent the base."""

    def without_adapters(self, whole, dtype):
        return lambda name, shape: whole(name, shape, dtype)

    monkeypatch.setattr(Gathering, "_merged", without_adapters)
    trainer.write_weights(0)
    train(trainer)
    with pytest.raises(RuntimeError, match="engines would go on generating from an old policy"):
        trainer.write_weights(1)


def test_first_factors_may_decay_alone(trainer):
    trainer.write_weights(0)
    with torch.no_grad():
        for name in trainer.policy.parameters.adapters:
            if name.endswith("lora_a.weight"):
                trainer.policy.parameters.masters[name].mul_(0.9)
    trainer.write_weights(1)


def test_adapters_that_do_not_follow_the_trained_ones_are_not_sent(adapters_alone, monkeypatch):
    run_adapters = Gathering.run_adapters

    def zero_second_factors(self, held, dtype=torch.float32):
        for name, tensor in run_adapters(self, held, dtype):
            yield name, torch.zeros_like(tensor) if name.endswith(".lora_B.weight") else tensor

    monkeypatch.setattr(Gathering, "run_adapters", zero_second_factors)
    adapters_alone.write_weights(0)
    train(adapters_alone)
    with pytest.raises(RuntimeError, match="engines would go on generating from an old policy"):
        adapters_alone.write_weights(1)
