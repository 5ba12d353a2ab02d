"""Runs whose files hold what rlrun never wrote: the page shows them, and names what it cannot read."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlrun.cli.main import make_app
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.view import curves as curves_module
from rlrun.runner.view.answers import Answers
from rlrun.runner.view.curves import MAX_NAMES, Curves
from rlrun.runner.view.export import collect
from rlrun.runner.view.index import UnwritableIndex
from rlrun.runner.view.indexer import Indexer
from rlrun.runner.view.page import to_json
from rlrun.runner.view.viewed_run import ViewedRun
from tests.runner.view.view_runs import record, write_readable_spec, write_run, write_step


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "runs" / "run")


def collected(folder: RunFolder) -> dict[str, Any]:
    """Everything that the page shows of a run, after it went through JSON."""
    indexer = Indexer(folder)
    indexer.update()
    data = collect([ViewedRun(folder, indexer)])
    assert to_json(data)
    [run] = data["runs"]
    return dict(run)


def test_a_file_of_a_step_that_no_database_can_hold_is_ignored(folder: RunFolder) -> None:
    samples = len(collected(folder)["samples"])
    for step in (10**15, 10**30, 10**100):
        (folder.rollouts / f"step-{step}.jsonl.zst").write_bytes(b"")
    assert len(collected(folder)["samples"]) == samples


def test_a_file_of_a_time_that_no_database_can_hold_is_indexed(folder: RunFolder) -> None:
    samples = len(collected(folder)["samples"])
    os.utime(folder.rollouts / "step-1.jsonl.zst", (10**10, 10**10))
    assert len(collected(folder)["samples"]) == samples


def test_rewards_of_any_size_are_listed_with_their_spread(folder: RunFolder) -> None:
    rewards = [1e308, -1e308, 1e308, 1e308, float("nan"), float("inf"), 10**400, 0.5]
    write_step(folder, 9, [record(9, line) | {"reward": reward} for line, reward in enumerate(rewards)])
    indexer = Indexer(folder)
    indexer.update()
    answers = Answers([ViewedRun(folder, indexer)])
    page = answers.answer("samples", {"runs": "0", "order": "disagreed"})
    group = page["rows"][0]
    assert (group["mean"], group["spread"]) == (pytest.approx(5e307), pytest.approx(3**0.5 / 2 * 1e308))
    assert len(collected(folder)["samples"]) == 8 * 5 + 2 * 2


@pytest.mark.parametrize("images", [3, [3], {"response": 3}, {"prompt": "x", "response": [3, [], [None]]}])
def test_images_of_any_shape_are_left_out(images: object, folder: RunFolder) -> None:
    write_step(folder, 9, [record(9, 0) | {"images": images}])
    assert "step-9-1" in collected(folder)["records"]


@pytest.mark.parametrize(
    "name",
    [
        "state.json",
        "metrics.jsonl",
        "timeline.jsonl",
        "spec.lock.json",
        "driver.lock",
        "rollouts/vocabulary.jsonl",
        "rollouts/step-4.jsonl.zst",
        f"rollouts/images/{'0' * 64}.png",
    ],
)
def test_a_pipe_in_a_run_folder_stops_no_command(name: str, folder: RunFolder) -> None:
    write_readable_spec(folder)
    path = folder.path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    run = collected(folder)
    shown = str(run["status"]["problems"] + run["problems"])
    if name in ("state.json", "metrics.jsonl", "rollouts/step-4.jsonl.zst"):
        assert f"{Path(name).name}" in shown
        assert "it is a pipe, not a regular file" in shown
    arguments = ["status", "run", "--runs-dir", str(folder.path.parent)]
    outcome = CliRunner().invoke(make_app(arguments), arguments)
    assert isinstance(outcome.exception, (type(None), SystemExit, ValueError, OSError))
    if name == "state.json":
        assert "pipe, not a regular file" in str(outcome.exception)


def test_a_run_with_too_many_metrics_shows_the_first_ones(folder: RunFolder) -> None:
    names = [f'"m{number}": 1' for number in range(20_000)]
    with folder.metrics.open("a") as file:
        for step in range(5, 25):
            file.write(f'{{"step": {step}, {", ".join(names)}}}\n')
    run = collected(folder)
    assert len(run["curves"]) == MAX_NAMES
    assert "train/loss" in run["curves"]
    [problem] = run["status"]["problems"]
    assert problem == (
        f"metrics.jsonl has at least {MAX_NAMES} metrics besides the {MAX_NAMES} that are shown"
    )


def test_short_lines_before_a_long_one_cost_no_memory_per_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves_module, "_MAX_VALUES", 100)
    path = tmp_path / "metrics.jsonl"
    names = ", ".join(f'"m{number}": 1' for number in range(11))
    path.write_text("".join(f'{{"step": {step}, {names}}}\n' for step in range(20)))
    curves = Curves(path)
    curves.refresh()
    assert len(curves.curve("m0")[0]) == 9
    assert curves.problems == [
        "metrics.jsonl has more than the 100 values that are shown: its last 11 lines are left out"
    ]


def test_a_full_disk_is_named_and_the_page_serves_what_needs_no_index(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect_on_full_disk(path: object, **options: Any) -> sqlite3.Connection:
        index = connect(path, **options)
        if isinstance(path, Path):
            index.execute("PRAGMA max_page_count = 2")  # SQLite then fails as on a full disk
        return index

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect_on_full_disk)
    run = ViewedRun(folder)
    answers = Answers([run])
    try:
        page = answers.answer("samples", {"runs": "0"})
        assert page["rows"] == []
        assert "database or disk is full): free space there" in page["index"]["error"]
        assert answers.answer("group", {"run": "0", "kind": "step", "step": "1", "row": "row 0"}) == []
        assert answers.answer("history", {"run": "0", "row": "row 0"})["samples"] == []
        assert answers.answer("sample", {"run": "0", "kind": "step", "step": "1", "line": "1"})["id"] == "0-0"
        assert answers.answer("runs", {"selected": "0"})[0]["names"]
    finally:
        run.close()
    with pytest.raises(UnwritableIndex, match="disk is full"):
        Indexer(folder).update()
    monkeypatch.setattr(sqlite3, "connect", connect)
    assert len(collected(folder)["samples"]) == 36
