import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rlrun.runner.errors import RunFolderError
from rlrun.runner.records.run_folder import RunFolder, claim, is_alive, owner


def now(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def started(runs: Path, status: str = "running") -> RunFolder:
    folder = claim(runs, "a", resume=False, new=False)
    folder.write_state(owner() | {"status": status})
    return folder


def test_a_fresh_folder_has_its_places(tmp_path: Path) -> None:
    folder = claim(tmp_path / "runs", "a", resume=False, new=False)
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "logs", "rollouts"]


def test_a_name_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    started(tmp_path)
    with pytest.raises(RunFolderError, match=r"--resume.*--new.*--name"):
        claim(tmp_path, "a", resume=False, new=False)


def test_a_place_where_no_folder_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"file/a cannot be made \(Not a directory\); runs_dir names"):
        claim(tmp_path / "file", "a", resume=False, new=False)


@pytest.mark.parametrize("text", ["{", "{}", "[]", ""])
def test_a_state_that_is_none_is_named(text: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.state.write_text(text)
    with pytest.raises(RunFolderError, match=r"state\.json holds no run's state; move it away"):
        folder.read_state()


def test_new_takes_the_next_free_name(tmp_path: Path) -> None:
    names = [claim(tmp_path, "a", resume=False, new=True).name for _ in range(3)]
    assert names == ["a", "a-2", "a-3"]


def test_nothing_to_resume_names_what_there_is(tmp_path: Path) -> None:
    started(tmp_path)
    with pytest.raises(RunFolderError, match=r"no run .*/b to resume; there are a"):
        claim(tmp_path, "b", resume=True, new=False)


def test_a_running_run_is_not_resumed(tmp_path: Path) -> None:
    started(tmp_path)
    with pytest.raises(RunFolderError, match=r"still running .* rlrun stop a"):
        claim(tmp_path, "a", resume=True, new=False)


@pytest.mark.parametrize("status", ["failed", "interrupted", "done"])
def test_a_run_that_ended_is_resumed(tmp_path: Path, status: str) -> None:
    folder = started(tmp_path, status)
    assert claim(tmp_path, "a", resume=True, new=False).path == folder.path


@pytest.mark.parametrize(
    ("changes", "alive"),
    [
        ({}, True),
        ({"status": "done"}, False),
        ({"process_started": 1.0}, False),  # the pid was taken by another process
        ({"host": "elsewhere", "pid": 1, "updated": now(-60)}, True),
        ({"host": "elsewhere", "pid": 1, "updated": now(-400)}, False),  # its host is gone
    ],
)
def test_a_run_is_alive_while_the_very_process_is(changes: dict[str, object], alive: bool) -> None:
    assert is_alive(owner() | {"status": "running"} | changes) is alive


def test_what_came_after_the_checkpoint_is_moved_aside(tmp_path: Path) -> None:
    folder = started(tmp_path)
    folder.metrics.write_text("".join(json.dumps({"step": n}) + "\n" for n in range(5)) + '{"step": 5, "to')
    for step in (2, 3, 4):
        (folder.rollouts / f"step-{step}.jsonl.zst").write_text("x")
    folder.take_back(2)
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [0, 1, 2]
    assert [path.name for path in folder.rollouts.iterdir()] == ["step-2.jsonl.zst"]
    aside = folder.superseded / "1"
    assert aside.joinpath("metrics.jsonl").read_text() == '{"step": 3}\n{"step": 4}\n{"step": 5, "to'
    assert sorted(path.name for path in (aside / "rollouts").iterdir()) == [
        "step-3.jsonl.zst",
        "step-4.jsonl.zst",
    ]


def test_a_step_whose_evaluation_waits_is_written_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.make()
    folder.metrics.write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2)))
    for step in (1, 2):
        (folder.rollouts / f"step-{step}.jsonl.zst").touch()
    folder.take_back(2, evaluated=False)
    assert folder.metrics.read_text() == '{"step": 1}\n'
    assert len(list(folder.rollouts.iterdir())) == 2  # its samples stay: they are not made again


def test_nothing_to_take_back_leaves_no_trace(tmp_path: Path) -> None:
    folder = started(tmp_path)
    folder.metrics.write_text('{"step": 1}\n')
    folder.take_back(1)
    assert not folder.superseded.exists()


def test_state_is_replaced_in_one_piece(tmp_path: Path) -> None:
    folder = started(tmp_path)
    folder.write_state({"status": "done"})
    assert folder.read_state() == {"status": "done"}
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]
