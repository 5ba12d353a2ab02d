import asyncio
import errno
import io
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from rich.console import Console as Terminal

from rlrun.plugins.types import Group
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.step_clock import Span
from rlrun.runner.records import tracking
from rlrun.runner.records.console import Console
from rlrun.runner.records.encoded_arrays import decode_array
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.packed_lines import read_records
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import TOKEN_BUDGET
from tests.runner.loop_fakes import prompt, sample


class RecordingTracker:
    def __init__(self, fails: bool = False) -> None:
        self.calls: list[Any] = []
        self.fails = fails

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        self.calls.append(("start", name, dict(spec)))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(("log", step))
        if self.fails:
            raise RuntimeError("no network")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return folder


def journal(folder: RunFolder, *trackers: RecordingTracker) -> Journal:
    console = Console("run", Terminal(file=io.StringIO()))
    return Journal(folder, console, [(f"tracker {n}", one) for n, one in enumerate(trackers)])


async def test_every_step_has_a_line_and_its_samples(folder: RunFolder) -> None:
    one = journal(folder)
    one.begin(0, 2, {})
    group = Group(prompt(3), [sample(3, 0, 1.0), sample(3, 1, float("nan"), failure="crashed")])
    one.samples(1, [group])
    one.step(1, {"rollout/reward/mean": 0.5, "rollout/reward/std": 0.1, "rollout/response_len/mean": 1.0})
    one.step(2, {"train/loss": float("nan")})
    await one.flush()
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["train/loss"] is None
    text = zstandard.decompress((folder.rollouts / "step-1.jsonl.zst").read_bytes()).decode()
    first, second = (json.loads(line) for line in text.splitlines())
    assert (first["id"], first["reward"], first["prompt"]) == ("3-0", 1.0, "prompt 3")
    assert (second["reward"], second["failure"]) == (None, "crashed")
    one.close("done")
    state = folder.read_state()
    assert (state["status"], state["step"], state["steps"], state["error"]) == ("done", 2, 2, None)
    assert state["metrics"]["rollout/reward/mean"] == 0.5


async def test_the_state_has_the_time_that_is_left(folder: RunFolder) -> None:
    one = journal(folder)
    one.begin(0, 5, {})
    one.step(0, {"perf/eval_time": 60.0})
    await one.flush()
    assert folder.read_state()["seconds_left"] is None
    for step in range(1, 5):
        one.step(step, {"perf/step_time": 100.0 * step})
    await one.flush()
    assert folder.read_state()["seconds_left"] == pytest.approx(500.0), "steps become longer"
    one.close("done")


class TableTracker(RecordingTracker):
    def log_table(self, step: int, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        self.calls.append(("table", step, name, [dict(zip(columns, row, strict=True)) for row in rows]))


async def test_trackers_that_show_tables_get_samples(folder: RunFolder) -> None:
    tables, other = TableTracker(), RecordingTracker()
    one = journal(folder, tables, other)
    one.begin(0, 2, {})
    group = Group(prompt(3), [sample(3, number, float("nan") if number else 1.0) for number in range(20)])
    one.samples(1, [group])
    one.evaluation(1, {"sums": [group]})
    one.step(1, {"train/loss": 0.5})
    await one.flush()
    one.close("done")
    _, (_, step, name, rows), (*_, evaluated, _), log, _ = tables.calls
    assert (step, name, evaluated, log) == (1, "samples", "eval/sums/samples", ("log", 1))
    assert len(rows) == 16
    assert rows[0] == {
        "id": "3-0", "prompt": "prompt 3", "response": "1", "reward": 1.0, "rewards": "", "reasons": "",
        "label": "1", "status": "completed", "tokens": 1.0,
    }  # fmt: skip
    assert rows[1]["reward"] is None
    assert [call[0] for call in other.calls[:-1]] == ["start", "log"]


class AlertTracker(RecordingTracker):
    def alert(self, step: int, name: str, sentence: str) -> None:
        self.calls.append(("alert", step, name, sentence))


async def test_an_alert_is_said_once_and_is_a_metric_while_it_holds(folder: RunFolder) -> None:
    shown, tracker = io.StringIO(), AlertTracker()
    console = Console("run", Terminal(file=shown, width=400))
    one = Journal(folder, console, [("alerted", tracker), ("other", RecordingTracker())])
    one.begin(0, 30, {"rollout": {"batch_size": 4}})
    for step in range(1, 23):
        one.step(step, {"perf/step_time": 1.0, "rollout/dropped/nonzero_std/all_equal": 40.0})
    await one.flush()
    one.close("done")
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if line.get("alerts/starvation") == 1.0] == [20, 21, 22]
    assert shown.getvalue().count("alert starvation: 91 % of the groups are not trained on") == 1
    alerts = [(number, call) for number, call in enumerate(tracker.calls) if call[0] == "alert"]
    [(number, (_, step, name, sentence))] = alerts
    assert (step, name) == (20, "starvation") and sentence.startswith("91 % of the groups")
    assert tracker.calls[number - 1] == ("log", 20)


async def test_a_run_is_known_to_be_alive_before_it_begins(folder: RunFolder) -> None:
    one = journal(folder)
    assert folder.read_state()["status"] == "running"
    one.close("failed", "no such model")
    assert folder.read_state()["error"] == "no such model"


async def test_a_run_says_that_it_is_alive_in_a_step_that_takes_long(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun.runner.records.journal.HEARTBEAT_SECONDS", 0.001)
    one = journal(folder)
    written = threading.Event()
    monkeypatch.setattr(folder, "write_state", lambda state: written.set())
    assert await asyncio.to_thread(written.wait, 30)
    one.close("done")


async def test_a_failing_tracker_is_reported_once_and_does_not_stop_the_run(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    broken, fine = RecordingTracker(fails=True), RecordingTracker()
    one = journal(folder, broken, fine)
    one.begin(0, 3, {"seed": 1})
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            one.step(step, {})
        await one.flush()
        one.close("done")
    warnings = [record.getMessage() for record in caplog.records if "tracker 0" in record.getMessage()]
    assert warnings == ["tracker 'tracker 0' failed (RuntimeError: no network); the job continues"]
    assert fine.calls == [("start", "run", {"seed": 1}), ("log", 1), ("log", 2), ("log", 3), "close"]


async def test_a_tracker_that_hangs_does_not_delay_the_run(
    folder: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HangingTracker(RecordingTracker):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            super().log(step, metrics)
            gate.wait()

    gate = threading.Event()
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 0.05)
    stuck = HangingTracker()
    one = journal(folder, stuck)
    one.begin(0, 2, {})
    one.step(1, {"loss": 1.0})
    one.step(2, {"loss": 2.0})
    await one.flush()
    assert len(folder.metrics.read_text().splitlines()) == 2
    with caplog.at_level(logging.WARNING):
        one.close("done")
    assert folder.read_state()["status"] == "done"
    assert "tracker 'tracker 0' hangs" in caplog.text
    assert stuck.calls == [("start", "run", {}), ("log", 1)]
    gate.set()


async def test_a_full_disk_ends_the_job_and_says_so(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = journal(folder)
    one.begin(0, 3, {})
    await one.flush()

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    one.samples(1, [Group(prompt(0), [sample()])])
    with pytest.raises(JobError, match=r"No space left on device.*--resume"):
        await one.flush()
    one.close("failed", "full")


async def test_only_some_samples_of_a_large_step_are_kept(folder: RunFolder) -> None:
    one = journal(folder)
    groups = [Group(prompt(i), [sample(i, k) for k in range(8)]) for i in range(64)]
    one.samples(1, groups)
    await one.flush()
    one.close("done")
    lines = zstandard.decompress((folder.rollouts / "step-1.jsonl.zst").read_bytes()).splitlines()
    assert len(lines) == 32
    assert len({json.loads(line)["row"] for line in lines}) == 4


async def test_samples_of_evaluations_and_removed_samples_are_kept(
    folder: RunFolder,
) -> None:
    one = journal(folder)
    removed = sample(4, 0, 0.0)
    removed.verdicts.append("nonzero_std/zero_std")
    removed.reward_details["judge"] = {"score": 0.0, "reason": "no answer"}
    one.samples(2, [], [Group(prompt(4), [removed])])
    one.evaluation(2, {"held_out": [Group(prompt(i), [sample(i)]) for i in range(2000)]})
    await one.flush()
    one.close("done")
    [dropped] = read_records(folder.rollouts / "dropped-2.jsonl.zst")
    assert dropped["verdicts"] == ["nonzero_std/zero_std"]
    assert dropped["details"] == {"judge": {"score": 0.0, "reason": "no answer"}}
    evaluated = list(read_records(folder.rollouts / "eval-2.jsonl.zst"))
    assert {record["dataset"] for record in evaluated} == {"held_out"}
    assert len(evaluated) == 500


async def test_only_the_first_tokens_of_a_step_are_saved_with_their_texts(folder: RunFolder) -> None:
    one = journal(folder)
    one.save_tokens(lambda tokens: [b"\xe2\x82" if token == 7 else f"t{token}".encode() for token in tokens])
    samples = [sample(0, number) for number in range(3)]
    for number, length in enumerate((TOKEN_BUDGET - 1, 1, 1)):
        samples[number].tokens = np.full(length, 6 + number, np.int32)
        samples[number].log_probs = samples[number].loss_mask = np.ones(length, np.float32)
        samples[number].advantages = np.full(length, 0.5, np.float32)
    one.samples(1, [Group(prompt(0), samples)])
    await one.flush()
    one.close("done")
    first, second, third = read_records(folder.rollouts / "step-1.jsonl.zst")
    assert decode_array(second["advantages"], "<f4").tolist() == [0.5]
    assert "log_probs" in first
    assert "log_probs" not in third
    lines = [json.loads(line) for line in folder.vocabulary.read_text().splitlines()]
    assert lines == [[6, "t6"], [7, {"hex": "e282"}], [8, "t8"]]


async def test_the_timeline_counts_seconds_from_the_start_of_the_step(folder: RunFolder) -> None:
    one = journal(folder)
    one.timeline(3, 100.0, [Span("driver", "rollout", 100.5, 101.0), Span("engine 0", "work", 99, 101)])
    await one.flush()
    one.close("done")
    line = json.loads(folder.timeline.read_text())
    assert line["step"] == 3
    assert line["spans"] == [["driver", "rollout", 0.5, 1.0], ["engine 0", "work", -1.0, 1.0]]
