import json
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.records.learning_curve import panels_of, plot_text, write_curve
from rlrun.runner.records.run_folder import RunFolder


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


@pytest.mark.parametrize(
    ("lines", "panels"),
    [
        pytest.param(
            LINES,
            {
                "reward": {
                    "eval/held-out/reward": [(0, 0.1), (3, 0.9)],
                    "rollout/reward/mean": [(1, 0.2), (3, 0.8)],
                }
            },
            id="rewards hide the loss",
        ),
        pytest.param([{"step": 1, "train/loss": 2.0}], {"loss": {"train/loss": [(1, 2.0)]}}, id="loss"),
        pytest.param([], {}, id="nothing"),
        pytest.param([{"step": 1, "train/loss": float("nan")}], {}, id="not finite"),
        pytest.param(
            [
                {
                    "step": 1,
                    "rollout/reward/mean": 1.0,
                    "rollout/response_len/mean": 9.0,
                    "train/entropy": 0.5,
                    "train/approx_kl": 0.0,
                    "perf/tokens_per_second/trained": 7.0,
                }
            ],
            {
                "reward": {"rollout/reward/mean": [(1, 1.0)]},
                "response length (tokens)": {"rollout/response_len/mean": [(1, 9.0)]},
                "entropy": {"train/entropy": [(1, 0.5)]},
                "throughput (tokens per second)": {"perf/tokens_per_second/trained": [(1, 7.0)]},
            },
            id="panels of a GRPO job without KL or gap",
        ),
    ],
)
def test_the_panels_of_a_run(lines: list[dict[str, Any]], panels: dict[str, Any]) -> None:
    assert panels_of(lines) == panels


def test_the_curve_is_drawn_and_an_older_picture_is_set_aside(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LINES)
    curve = write_curve(folder, "a run", 120)
    assert "● eval/held-out/reward" in curve
    assert max(map(len, curve.splitlines())) == 120
    assert folder.curve.read_bytes().startswith(b"\x89PNG")
    write_curve(folder, "a run", 80)
    assert (folder.superseded / "1" / "curve.png").exists()


def test_a_run_of_one_step_has_no_curve_to_print(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LINES[:1])
    assert write_curve(folder, "a run", 80) == ""
    assert folder.curve.exists()


def test_without_metrics_there_is_no_curve(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, [])
    assert write_curve(folder, "a run", 80) == ""
    assert not folder.curve.exists()


def test_a_curve_in_text() -> None:
    lines = plot_text({"up": [(0, 0.0), (10, 1.0)]}, width=11, height=3).splitlines()
    assert lines[0].strip() == "1 │        ●●●"
    assert lines[2].strip() == "0 │●●●"
    assert lines[-1].strip() == "● up"


def test_a_flat_curve_and_a_single_point_can_be_drawn() -> None:
    assert "●" in plot_text({"flat": [(1, 0.5), (2, 0.5)]})
    assert "●" in plot_text({"point": [(1, 0.5)]})


def test_values_whose_difference_is_infinite_are_not_drawn() -> None:
    lines = [{"step": step, "train/loss": value} for step, value in enumerate([1e308, -1e308, 1.0, 10**400])]
    assert panels_of(lines) == {"loss": {"train/loss": [(2, 1.0)]}}
