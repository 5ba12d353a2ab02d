"""A launch's temporary folder, and what of killed launches is removed: their own leftovers, nothing else."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlrun.runner.cluster import scratch
from rlrun.runner.cluster.scratch import Scratch, remove_leftovers, scratch_folder
from rlrun.runner.host.child_processes import guarded

LAUNCH = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from rlrun.runner.cluster.scratch import scratch_folder
with scratch_folder() as scratch:
    (scratch.ray / "session").mkdir(parents=True)
    (scratch.ray / "session" / "file").write_text("x")
    print(scratch.path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(scratch, "remove_stale_segments", lambda: [])
        yield Path(folder)


@pytest.fixture
def launch(parent: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process with a folder, which it has told."""
    command = [sys.executable, "-c", LAUNCH, str(parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def path_of(launch: "subprocess.Popen[str]") -> Path:
    assert launch.stdout is not None
    return Path(launch.stdout.readline().strip())


@pytest.fixture
def left(parent: Path) -> Path:
    """The folder of a launch that was killed."""
    child = os.fork()
    if not child:
        with scratch_folder() as mine:
            (mine.ray / "session").mkdir(parents=True)
            (mine.ray / "session" / "file").write_text("x")
            os._exit(0)
    os.waitpid(child, 0)
    [path] = parent.iterdir()
    return path


def test_a_folder_is_its_owner_s_alone_and_goes_with_it(parent: Path) -> None:
    with scratch_folder() as mine:
        assert mine.path.parent == parent
        assert stat.S_IMODE(mine.path.stat().st_mode) == 0o700
        mine.note({"trainer 0": 7, "engine 0": None})
        assert json.loads((mine.path / "processes.json").read_text()) == {"trainer 0": 7}
        mine.ray.chmod(0o777)  # as Ray does
        (mine.path / "link").symlink_to("/etc")
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("room", [True, False])
def test_ray_s_sockets_have_room(room: bool, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = parent if room else parent / ("a" * 90)
    usual.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    with scratch_folder() as mine:
        assert mine.path.parent == (usual if room else Path("/tmp"))
        socket = mine.ray / "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
        assert len(os.fsencode(socket)) <= 107
    assert not mine.path.exists()


def test_what_a_killed_launch_left_is_removed_and_a_running_one_keeps_its_folder(
    launch: "subprocess.Popen[str]", parent: Path
) -> None:
    path = path_of(launch)
    remove_leftovers()
    assert (path / "r" / "session" / "file").exists()
    launch.kill()
    launch.wait()
    with scratch_folder() as mine:
        remove_leftovers()
        assert list(parent.iterdir()) == [mine.path]


def test_a_removal_that_was_interrupted_is_taken_up_again(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        remove_leftovers()
    assert (left / "r" / "session").exists()
    remove_leftovers()
    assert not left.exists()


def replaced(path: Path, **changes: object) -> None:
    marker = path / "owner.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | changes))


def as_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def copied(path: Path) -> None:
    shutil.copytree(path, path.parent / "rlrun-abcdefgh")
    shutil.rmtree(path)


def with_linked_marker(path: Path) -> None:
    (path / "owner.json").rename(path.parent / "owner.json")
    (path / "owner.json").symlink_to(path.parent / "owner.json")


def with_piped_marker(path: Path) -> None:
    (path / "owner.json").unlink()
    os.mkfifo(path / "owner.json")


NOT_LEFT: dict[str, Callable[[Path], object]] = {
    "a link": as_link,
    "a copy": copied,
    "another name": lambda path: path.rename(path.parent / "rlrun-project"),
    "nested": lambda path: shutil.move(path, path.parent / "other" / path.name),
    "open to others": lambda path: path.chmod(0o770),
    "no marker": lambda path: (path / "owner.json").unlink(),
    "a linked marker": with_linked_marker,
    "a pipe": with_piped_marker,
    "an empty marker": lambda path: (path / "owner.json").write_text(""),
    "a marker that is no object": lambda path: (path / "owner.json").write_text("[" * 10_000),
    "a process id of a wrong kind": lambda path: replaced(path, pid=-1),
    "an owner that runs": lambda path: replaced(path, **running()),
    "an owner of another boot": lambda path: replaced(path, boot_id="another"),
}


def running() -> dict[str, object]:
    return dict(scratch.Owner.current().model_dump())


@pytest.mark.parametrize("what", NOT_LEFT)
def test_only_the_remains_of_a_killed_launch_are_removed(what: str, left: Path, parent: Path) -> None:
    (parent / "other").mkdir()
    NOT_LEFT[what](left)
    before = sorted(parent.rglob("*"))
    remove_leftovers()
    assert sorted(parent.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("name", ["", "owner.json"])
def test_folders_of_other_users_are_left_alone(name: str, left: Path) -> None:
    os.chown(left / name, 12345, 12345)
    remove_leftovers()
    assert (left / "r" / "session" / "file").exists()


@pytest.mark.parametrize(("ended", "removed"), [(True, True), (False, False)])
def test_without_locks_the_owner_s_process_decides(
    ended: bool, removed: bool, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ended:
        replaced(left, **running())
    monkeypatch.setattr(scratch, "try_lock", lambda _: None)
    remove_leftovers()
    assert left.exists() is not removed


@pytest.mark.parametrize("locked", [True, None])
def test_a_lock_that_is_free_tells_that_another_container_s_owner_has_ended(
    locked: bool | None, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(left, pid_namespace=1)
    monkeypatch.setattr(scratch, "try_lock", lambda _: locked)
    remove_leftovers()
    assert left.exists() is (locked is None)


def test_shared_memory_of_processes_that_ended_goes_too(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[int] = []
    monkeypatch.setattr(scratch, "remove_segments_of", removed.extend)
    noted = {"trainer 0": 1 << 22, "driver": os.getpid(), "a": -1, "b": "7", "c": True, "d": None}
    (left / "processes.json").write_text(json.dumps(noted))
    remove_leftovers()
    assert removed == [1 << 22]
    assert not left.exists()


@pytest.mark.parametrize("content", ["", "[", "[1]", "1", "[" * 100_000])
def test_damaged_notes_do_not_keep_a_folder(content: str, left: Path) -> None:
    (left / "processes.json").write_text(content)
    remove_leftovers()
    assert not left.exists()


def test_notes_are_replaced_in_one_piece(tmp_path: Path) -> None:
    with guarded("rlrun-a-test") as guardian:
        for pid in (1, 2):
            Scratch(tmp_path, guardian).note({"trainer 0": pid})
    assert [path.name for path in tmp_path.iterdir()] == ["processes.json"]
