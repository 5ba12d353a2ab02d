"""What trackers leave in the run folder."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.plugins.registry import build
from rlrun.plugins.testing import check_parameters


def test_tensorboard_holds_every_point_also_of_a_resumed_run(tmp_path: Path) -> None:
    check_parameters("trackers", "tensorboard", {})
    for steps in ([0, 1], [2]):
        tracker = build("trackers", "tensorboard", {})
        tracker.start(str(tmp_path), "run", {})
        for step in steps:
            tracker.log(step, {"train/loss": step / 2, "rollout/reward": 1.0})
        tracker.close()
        tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("train/loss")] == [(0, 0), (1, 0.5), (2, 1)]


def test_a_tracker_that_never_started_can_be_closed() -> None:
    build("trackers", "tensorboard", {}).close()
