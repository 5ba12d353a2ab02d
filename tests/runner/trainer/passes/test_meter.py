import pytest
import torch

from rlrun.runner.trainer.passes.meter import Meter

CPU = torch.device("cpu")


def test_sums_maxima_and_durations_over_micro_batches():
    meter = Meter()
    for loss, peak, seconds in ((1.0, 0.5, 0.5), (torch.tensor(2.0), torch.tensor(0.25), 0.25)):
        meter.add({"loss": loss})
        meter.raise_to({"peak": peak})
        meter.lengthen({"seconds": seconds})
    assert meter.reduced(True, CPU) == {"loss": 3.0, "peak": 0.5, "seconds": 0.75}


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
    meter.lengthen({"seconds": 0.5})
    assert meter.reduced(True, CPU) == {"loss": 5.0, "peak": 9.0, "seconds": 0.5}
    assert meter.reduced(False, CPU) == {"loss": 4.0, "peak": 9.0, "seconds": 0.5}
    assert reductions == [[1.0], [3.0, 0.5], [0.0], [3.0, 0.5]]


def test_ranks_reduce_in_the_same_order_whatever_they_saw_first(reductions):
    meter = Meter()
    meter.add({"b": 2.0, "a": 1.0})
    meter.lengthen({"d": 4.0})
    meter.raise_to({"c": 3.0})
    assert meter.reduced(True, CPU) == {"a": 5.0, "b": 6.0, "c": 9.0, "d": 4.0}
    assert reductions == [[1.0, 2.0], [3.0, 4.0]]


def test_ranks_that_saw_other_things_agree_on_names(reductions, monkeypatch: pytest.MonkeyPatch):
    def all_gather_object(everyones, mine):
        everyones[:] = [mine, (["z", "loss"], ["y"], ["x"])]

    monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
    meter = Meter()
    meter.add({"loss": 1.0})
    assert meter.reduced(True, CPU, agree=True) == {"loss": 5.0, "z": 4.0, "x": 9.0, "y": 0.0}
    assert reductions == [[1.0, 0.0], [0.0, 0.0]]
