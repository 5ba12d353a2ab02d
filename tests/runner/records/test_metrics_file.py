import json
import logging
from pathlib import Path

import pytest

from rlrun.runner.records.metrics_file import read_lines, read_metrics, split_at_step
from rlrun.runner.records.run_folder import RunFolder

BROKEN = {
    "cut in the middle": b'{"step": 2, "train/lo\n',
    "a flipped bit in a quote": b'{"step": 2, \xa2train/loss": 1}\n',
    "empty": b"\n",
    "zeros, as a crashed file system leaves them": b"\0" * 512 + b"\n",
    "no table": b"[2]\n",
    "no step": b'{"train/loss": 1}\n',
    "a step that is no number": b'{"step": "2"}\n',
    "a step that is true": b'{"step": true}\n',
    "a metric that is no number": b'{"step": 2, "train/loss": "1"}\n',
    "nested without end": b"[" * 100_000 + b"\n",
}


def line(step: int) -> bytes:
    return json.dumps({"step": step, "train/loss": step / 2, "rollout/reward/mean": None}).encode() + b"\n"


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_named_and_costs_only_itself(
    broken: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + broken + line(3))
    with caplog.at_level(logging.WARNING):
        assert [metrics["step"] for metrics in read_metrics(path)] == [1, 3]
    assert [record.message for record in caplog.records] == [
        f"{path}:2 does not hold the metrics of a step: skipped"
    ]


def test_a_last_line_that_a_crash_cut_short_is_nothing_to_warn_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + line(2)[:-1])  # without its line break nobody knows whether more would follow
    assert [metrics["step"] for metrics in read_metrics(path)] == [1]
    assert not caplog.records


def test_later_and_broken_lines_are_cut_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + b"{\n" + line(2) + line(3))
    kept, cut = split_at_step(read_lines(path), 2)
    assert [one.number for one in kept] == [1, 3]
    assert [one.number for one in cut] == [2, 4]


def test_a_resume_moves_broken_lines_aside_and_keeps_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.metrics.write_bytes(line(1) + b'{"step": 2,,\n' + line(3))
    folder.take_back(3)
    assert folder.metrics.read_bytes() == line(1) + line(3)
    assert (folder.superseded / "1" / "metrics.jsonl").read_bytes() == b'{"step": 2,,\n'
    assert "metrics.jsonl:2 does not hold the metrics of a step: moved to" in caplog.text


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "metrics.jsonl") == []
