import pytest
import torch

from rlrun.runner.trainer.passes.meter import Meter, read

CPU = torch.device("cpu")


def test_sums_and_maxima_over_micro_batches():
    meter = Meter()
    for loss, peak in ((1.0, 0.5), (torch.tensor(2.0), torch.tensor(0.25))):
        meter.add({"loss": loss})
        meter.raise_to({"peak": peak})
    assert read(meter.reduced(True, CPU), CPU) == {"loss": 3.0, "peak": 0.5}


def test_values_keep_the_precision_that_they_have():
    """A count of tokens can exceed the integers that float32 has."""
    meter = Meter()
    meter.add({"tokens": 2**24 + 1, "loss": torch.tensor(0.1)})
    assert read(meter.reduced(True, CPU), CPU) == {"tokens": 2**24 + 1, "loss": float(torch.tensor(0.1))}


@pytest.fixture
def reductions(monkeypatch: pytest.MonkeyPatch):
    """What this rank, one of two, puts into reductions; the other one adds 4 to sums, and has 9 at first."""
    found = []

    def all_reduce(values, operation):
        found.append(values.tolist())
        if operation == torch.distributed.ReduceOp.MAX:
            values[0] = max(values[0], 9.0)
        else:
            values += 4

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    return found


def test_ranks_that_share_data_are_summed_up_once(reductions):
    meter = Meter()
    meter.add({"loss": 1.0})
    meter.raise_to({"peak": 3.0})
    assert read(meter.reduced(True, CPU), CPU) == {"loss": 5.0, "peak": 9.0}
    assert read(meter.reduced(False, CPU), CPU) == {"loss": 4.0, "peak": 9.0}
    assert reductions == [[1.0], [3.0], [0.0], [3.0]]


def test_ranks_reduce_in_the_same_order_whatever_they_saw_first(reductions):
    meter = Meter()
    meter.add({"b": 2.0, "a": 1.0})
    meter.raise_to({"d": 4.0})
    meter.raise_to({"c": 3.0})
    assert read(meter.reduced(True, CPU), CPU) == {"a": 5.0, "b": 6.0, "c": 9.0, "d": 4.0}
    assert reductions == [[1.0, 2.0], [3.0, 4.0]]


def test_an_undeclared_metric_is_a_mistake_of_rlrun():
    meter = Meter()
    meter.add_token_means({"ratio": torch.tensor([1.0, 3.0])}, torch.tensor([0.5, 0.5]))
    metrics = read(meter.reduced(True, CPU), CPU)
    assert metrics == {"train/ratio": 2.0}
    meter.check_declared(metrics | {"train/expert_load_min": 1.0})
    with pytest.raises(AssertionError, match="train/other"):
        meter.check_declared(metrics | {"train/other": 1.0})


@pytest.mark.parametrize("name", ["tokens", "lr", "expert_load_min"])
def test_an_algorithm_cannot_report_a_metric_of_rlrun(name):
    with pytest.raises(ValueError, match=f"returns the metric '{name}'"):
        Meter().add_token_means({name: torch.ones(2)}, torch.ones(2))


def test_a_maximum_that_is_not_a_number_cannot_be_lost_in_a_reduction(reductions):
    """gloo's maximum of 0 and NaN is 0 if NaN is a later rank's: true_on_policy would take that for equal."""
    meter = Meter()
    meter.raise_to({"difference": float("nan"), "other": torch.tensor(0.5)})
    meter.raise_to({"difference": 0.0})
    assert read(meter.reduced(True, CPU), CPU) == {"difference": float("inf"), "other": 0.5}
    assert reductions == [[], [float("inf"), 0.5]]
