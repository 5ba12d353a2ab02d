import pytest
import torch

from rlrun.runner.trainer.meter import Meter

CPU = torch.device("cpu")


def test_sums_maxima_and_durations_over_micro_batches():
    meter = Meter()
    for loss, peak, seconds in ((1.0, 0.5, 0.5), (torch.tensor(2.0), torch.tensor(0.25), 0.25)):
        meter.add({"loss": loss})
        meter.raise_to({"peak": peak})
        meter.lengthen({"seconds": seconds})
    assert meter.reduced(True, CPU) == {"loss": 3.0, "peak": 0.5, "seconds": 0.75}


def test_ranks_are_summed_up_once_for_each_share_of_the_data(monkeypatch: pytest.MonkeyPatch):
    """Two ranks that say the same: of sums one counts, of the rest the largest."""
    reductions = []

    def all_reduce(values, operation):
        reductions.append((values.tolist(), operation))
        if operation == torch.distributed.ReduceOp.MAX:
            values.copy_(torch.maximum(values, torch.tensor([9.0, 0.0], dtype=values.dtype)))
        else:
            values += 4

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    meter = Meter()
    meter.add({"loss": 1.0})
    meter.raise_to({"peak": 3.0})
    meter.lengthen({"seconds": 0.5})
    assert meter.reduced(True, CPU) == {"loss": 5.0, "peak": 9.0, "seconds": 0.5}
    assert meter.reduced(False, CPU) == {"loss": 4.0, "peak": 9.0, "seconds": 0.5}
    assert [values for values, _ in reductions] == [[1.0], [3.0, 0.5], [0.0], [3.0, 0.5]]
