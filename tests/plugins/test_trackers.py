"""What trackers leave in the run folder."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.plugins.registry import names
from rlrun.plugins.testing import check_tracker


@pytest.mark.parametrize("name", names("trackers"))
def test_every_tracker_keeps_the_contract(name: str, tmp_path: Path) -> None:
    check_tracker(name, {}, str(tmp_path))


def test_tensorboard_holds_every_point_also_of_a_resumed_run(tmp_path: Path) -> None:
    check_tracker("tensorboard", {"folder": "events"}, str(tmp_path))
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    points = [(point.step, point.value) for point in events.Scalars("train/loss")]
    assert points == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
