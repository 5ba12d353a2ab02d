import json
from pathlib import Path

import zstandard

from rlrun.runner.records.report import read_curves, write_report
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.text_plot import plot_text


def folder_with(tmp_path: Path, lines: list[dict[str, object]]) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


LINES = [
    {"step": 0, "eval/held-out/reward": 0.1},
    {"step": 1, "rollout/reward/mean": 0.2, "train/loss": 0.0},
    {"step": 2, "rollout/reward/mean": None, "train/loss": 0.0},
    {"step": 3, "rollout/reward/mean": 0.8, "train/loss": 0.0, "eval/held-out/reward": 0.9},
]


def test_a_run_is_judged_by_its_rewards(tmp_path: Path) -> None:
    assert read_curves(folder_with(tmp_path, LINES)) == {
        "eval/held-out/reward": [(0, 0.1), (3, 0.9)],
        "rollout/reward/mean": [(1, 0.2), (3, 0.8)],
    }


def test_and_by_its_loss_where_there_are_none(tmp_path: Path) -> None:
    assert read_curves(folder_with(tmp_path, [{"step": 1, "train/loss": 2.0}])) == {"train/loss": [(1, 2.0)]}


def test_the_report_has_picture_numbers_and_samples_and_overwrites_nothing(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LINES)
    sample = {
        "id": "0-0",
        "prompt": "1 < 2?",
        "response": "<b>yes</b>",
        "reward": 1.0,
        "tokens": 3,
        "status": "completed",
    }
    (folder.rollouts / "step-3.jsonl.zst").write_bytes(zstandard.compress(json.dumps(sample).encode()))
    curve = write_report(folder, "a run", 120)
    assert "● eval/held-out/reward" in curve
    assert max(map(len, curve.splitlines())) == 120
    page = folder.report.read_text()
    assert "data:image/png;base64," in page
    assert "&lt;b&gt;yes&lt;/b&gt;" in page
    assert "<td>eval/held-out/reward</td><td>0.1</td><td>0.9</td><td>0.9</td>" in page
    write_report(folder, "a run", 80)
    assert (folder.superseded / "1" / "curve.png").exists()


def test_a_run_of_one_step_has_no_curve_to_print(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LINES[:1])
    assert write_report(folder, "a run", 80) == ""
    assert folder.curve.exists()


def test_no_metrics_no_report(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, [])
    assert write_report(folder, "a run", 80) == ""
    assert not folder.curve.exists()


def test_a_curve_in_text() -> None:
    lines = plot_text({"up": [(0, 0.0), (10, 1.0)]}, width=11, height=3).splitlines()
    assert lines[0].strip() == "1 │        ●●●"
    assert lines[2].strip() == "0 │●●●"
    assert lines[-1].strip() == "● up"


def test_a_flat_curve_and_a_single_point_can_be_drawn() -> None:
    assert "●" in plot_text({"flat": [(1, 0.5), (2, 0.5)]})
    assert "●" in plot_text({"point": [(1, 0.5)]})
