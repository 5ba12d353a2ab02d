import torch

from rlrun.runner.trainer.passes.stopwatch import Stopwatch


def test_a_part_that_runs_again_is_added_up():
    stopwatch = Stopwatch(torch.device("cpu"))
    for name in ("forward", "backward", "forward"):
        with stopwatch.part(name):
            pass
    assert stopwatch.seconds().keys() == {"forward", "backward"}
    assert all(seconds >= 0 for seconds in stopwatch.seconds().values())


def test_a_gpus_parts_last_as_long_as_its_work(monkeypatch):
    """The host is done long before: the device's clock moves by 250 ms for each part."""
    milliseconds = iter(range(0, 10_000, 250))

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.time = next(milliseconds)

        def elapsed_time(self, end):
            return end.time - self.time

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    stopwatch = Stopwatch(torch.device("cuda", 0))
    for name in ("forward", "backward", "forward"):
        with stopwatch.part(name):
            pass
    assert stopwatch.seconds() == {"forward": 0.5, "backward": 0.25}
