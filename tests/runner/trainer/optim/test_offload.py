"""Training state in host memory: training is the same bit for bit, and the state is where it should be."""

from pathlib import Path

import pytest
import torch
from torch import nn

from rlrun.runner.trainer.optim import offload
from rlrun.runner.trainer.optim.offload import Parking, host_zeros
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.specs.sections.optimizer import OptimizerSpec
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan, run_ranks
from tests.tiny_models import make_tiny_model

CPU = torch.device("cpu")
WORKER = Path(__file__).with_name("offload_worker.py")


def test_parked_tensors_take_no_memory_and_come_back_as_they_were():
    whole = torch.randn(8, 3)
    tensors = [whole, whole[2:], nn.Parameter(torch.randn(5)), torch.tensor(3.0), torch.empty(0)]
    before = [tensor.detach().clone() for tensor in tensors]
    parking = Parking(CPU)
    parking.park(tensors)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
    for tensor, value in zip(tensors[:4], before, strict=False):
        assert torch.equal(parking.present(tensor), value)
        assert tensor.untyped_storage().nbytes() == 0
    parking.unpark()
    assert parking.present(whole) is whole
    assert all(torch.equal(tensor, value) for tensor, value in zip(tensors, before, strict=True))
    assert tensors[1].data_ptr() == whole[2:].data_ptr()


def test_tensors_in_host_memory_are_not_parked():
    tensor = torch.ones(3)
    Parking(torch.device("meta")).park([tensor])
    assert tensor.untyped_storage().nbytes() == 12


def made(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {f"layers.{i}.attention.wo.weight": (8, 6) for i in range(3)}
    shapes |= {"tok_embeddings.weight": (10, 6), "norm.weight": (6,)}
    parameters = {
        name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()
    }
    for one in parameters.values():
        one.grad = torch.randn(one.shape, generator=generator)
    return parameters


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_state_on_the_host_takes_the_same_steps(name, monkeypatch):
    monkeypatch.setattr(offload, "CHUNK_BYTES", 200)  # one or two parameters at a time
    spec = OptimizerSpec(optimizer=name)
    ours, theirs = made(), made()
    optimizer, plain = Optimizer(spec, ours, on_host=True), Optimizer(spec, theirs)
    for rate in (0.1, 0.05, 0.02):
        optimizer.step(rate)
        plain.step(rate)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    state, expected = optimizer.tensors(), plain.tensors()
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    assert optimizer.updates == plain.updates


def test_state_that_visits_a_device_leaves_it_again(monkeypatch):
    """Which tensors AdamW computes with, and which are kept."""
    parameter = nn.Parameter(torch.ones(4, 4))
    parameter.grad = torch.ones(4, 4)
    optimizer = Optimizer(OptimizerSpec(), {"w.weight": parameter}, on_host=True)
    kept = dict(optimizer.tensors())
    seen = []
    (part,) = optimizer.optimizers
    step = part.step
    monkeypatch.setattr(part, "step", lambda: seen.append(dict(part.state[parameter])) or step())
    optimizer.step(0.1)
    assert seen[0]["exp_avg"] is not kept["exp_avg.w.weight"]
    assert optimizer.tensors()["exp_avg.w.weight"] is kept["exp_avg.w.weight"]
    assert kept["exp_avg.w.weight"].any()
    assert host_zeros(parameter).device == CPU


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(
        tmp_path_factory.mktemp("model") / "qwen3", scale=0.1, tied=True, pad_token_id=None
    )


def trained(rank, spec, times=2):
    sequences = make_sequences(6)
    return [
        {name: value for name, value in metrics.items() if name.startswith("train/")}
        for _ in range(times)
        for metrics in rank.policy.train(sequences, plan(sequences, spec))
    ]


def whole(rank):
    return {name: tensor.clone() for name, tensor in rank.policy.parameters.gather()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_one_rank_learns_the_same_wherever_its_state_lies(folder, dtype, tmp_path):
    results = {}
    for place in ("none", "optimizer", "all"):
        spec = make_spec(folder, dtype=dtype, offload=place)
        rank = make_rank(folder, spec)
        results[place] = trained(rank, spec), whole(rank)
        rank.save(tmp_path / place)
        rank.load(tmp_path / "none")
        assert same(whole(rank), results["none"][1])
        rank.close()
    assert results["optimizer"][0] == results["none"][0] == results["all"][0]
    assert same(results["optimizer"][1], results["none"][1])
    assert same(results["all"][1], results["none"][1])


def test_a_rank_gives_its_memory_up_and_goes_on_as_if_it_had_not(folder):
    spec = make_spec(folder, algorithm={"type": "ppo"})
    ranks = [make_rank(folder, spec) for _ in range(2)]
    first = [trained(rank, spec, 1) for rank in ranks]
    held = [
        tensor for part in (ranks[0].policy.parameters, ranks[0].policy.optimizer) for tensor in part.held
    ]
    held += ranks[0].critic._parameters.held
    ranks[0].offload()
    assert not any(tensor.untyped_storage().nbytes() for tensor in held)
    ranks[0].reload()
    assert first[0] == first[1]
    assert trained(ranks[0], spec) == trained(ranks[1], spec)
    assert same(whole(ranks[0]), whole(ranks[1]))
    for rank in ranks:
        rank.close()


def test_two_ranks_learn_the_same_wherever_their_state_lies(folder, tmp_path):
    moe = make_tiny_model(tmp_path / "moe", "qwen3_moe", scale=0.1, pad_token_id=None)
    alone = make_rank(folder, make_spec(folder, optimizer="adamw_8bit"))
    trained(alone, make_spec(folder), 1)
    alone.save(tmp_path / "alone")
    torch.save(alone.policy.optimizer.tensors(), tmp_path / "alone.pt")
    alone.close()
    cases = [
        (str(moe), {"fsdp": 2, "expert": 2}, "adamw", None),
        (str(folder), {"pipeline": 2}, "adamw", None),
        (str(folder), {"fsdp": 2}, "adamw_8bit", str(tmp_path / "alone")),
        (str(folder), {"tensor": 2}, "adamw_8bit", None),
    ]
    run_ranks(WORKER, 2, cases, tmp_path)
