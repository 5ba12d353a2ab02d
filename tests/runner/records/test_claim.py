import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.records.claim import claim_folder, is_claimed_by
from rlrun.runner.records.run_folder import RunFolder
from tests.runner.records.states import write_state

CLAIM = """
import subprocess, sys, time
from pathlib import Path
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.records.claim import claim_folder
sys.stdin.read(1)
try:
    how = {"resume": sys.argv[2] == "resume", "new": sys.argv[2] == "new"}
    with claim_folder(Path(sys.argv[1]), "a", **how) as folder:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                 close_fds=False, stdout=subprocess.DEVNULL)
        print(folder.name, child.pid, flush=True)
        sys.stdin.read()
except RunFolderError as error:
    print("refused", error, flush=True)
"""


class Launches:
    """Processes that claim a run's folder at the same time, and keep it until they are told to end."""

    def __init__(self, runs: Path, how: str, count: int) -> None:
        command = [sys.executable, "-c", CLAIM, str(runs), how]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(".")
            process.stdin.flush()
        self.answers = [self._answer(process) for process in self.processes]

    def _answer(self, process: "subprocess.Popen[str]") -> list[str]:
        assert process.stdout is not None
        return process.stdout.readline().split()

    def end(self) -> None:
        for process, answer in zip(self.processes, self.answers, strict=True):
            process.kill()
            process.communicate()
            if answer[0] != "refused":
                os.kill(int(answer[1]), signal.SIGKILL)


@pytest.fixture
def ended(tmp_path: Path) -> RunFolder:
    """A run that has ended."""
    with claim_folder(tmp_path, "a", resume=False, new=False) as folder:
        write_state(folder.path, status="failed")
    return folder


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def snapshot(folder: RunFolder) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_only_one_of_several_simultaneous_resumes_continues(ended: RunFolder, stack: ExitStack) -> None:
    before = snapshot(ended)
    launches = Launches(ended.path.parent, "resume", 4)
    stack.callback(launches.end)
    refused = [answer for answer in launches.answers if answer[0] == "refused"]
    assert len(refused) == 3
    assert all("still running" in " ".join(answer) for answer in refused)
    assert snapshot(ended) == before
    [owner] = [
        each.pid
        for each, answer in zip(launches.processes, launches.answers, strict=True)
        if answer[0] == "a"
    ]
    assert is_claimed_by(ended, owner)
    assert not any(is_claimed_by(ended, pid) for pid in (os.getpid(), 1, 2**22))


def test_what_a_killed_driver_started_does_not_keep_its_claim(ended: RunFolder, stack: ExitStack) -> None:
    launches = Launches(ended.path.parent, "resume", 1)
    stack.callback(launches.end)
    assert launches.answers[0][0] == "a"
    launches.processes[0].kill()
    launches.processes[0].wait()
    os.kill(int(launches.answers[0][1]), 0)  # its child still runs
    with claim_folder(ended.path.parent, "a", resume=True, new=False) as folder:
        assert folder.path == ended.path


def test_new_gives_launches_at_once_a_name_each(ended: RunFolder, stack: ExitStack) -> None:
    launches = Launches(ended.path.parent, "new", 4)
    stack.callback(launches.end)
    assert sorted(answer[0] for answer in launches.answers) == ["a-2", "a-3", "a-4", "a-5"]


def test_a_name_in_use_is_refused_with_what_to_do(ended: RunFolder, stack: ExitStack) -> None:
    with pytest.raises(RunFolderError, match=r"--resume.*--new.*--name"):
        stack.enter_context(claim_folder(ended.path.parent, "a", resume=False, new=False))


def test_a_place_where_no_folder_can_be_is_named(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"file/a cannot be created \(Not a directory\): set runs_dir"):
        stack.enter_context(claim_folder(tmp_path / "file", "a", resume=False, new=False))


def test_nothing_to_resume_names_what_there_is(ended: RunFolder, stack: ExitStack) -> None:
    with pytest.raises(RunFolderError, match=r"no run .*/b to resume; existing runs: a"):
        stack.enter_context(claim_folder(ended.path.parent, "b", resume=True, new=False))


def test_a_folder_that_no_launch_made_is_not_resumed(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "home" / "weights").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="home is not a run"):
        stack.enter_context(claim_folder(tmp_path, "home", resume=True, new=False))
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["weights"]


def test_a_run_that_another_host_runs_is_not_resumed(ended: RunFolder, stack: ExitStack) -> None:
    write_state(ended.path, host="elsewhere", pid=7)
    with pytest.raises(RunFolderError, match=r"still running \(process 7 on elsewhere\); .* rlrun stop a"):
        stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))
    write_state(ended.path, host="elsewhere", pid=7, status="done")
    stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))


def test_a_state_that_is_damaged_is_told_before_anything_is_done(ended: RunFolder, stack: ExitStack) -> None:
    write_state(ended.path, pid=-1)
    before = snapshot(ended)
    with pytest.raises(RunFolderError, match=r"does not hold a run's state \(pid"):
        stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))
    assert snapshot(ended) == before
    ended.state.unlink()
    stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))


@pytest.mark.parametrize(
    "name",
    ["metrics.jsonl", "driver.lock", "logs/driver.log", "checkpoints", "checkpoints/step-1", "weights",
     ".model.tmp", "superseded/1", "rollouts/step-1.jsonl.zst"],
)  # fmt: skip
def test_a_folder_with_links_to_elsewhere_is_not_resumed(
    name: str, ended: RunFolder, stack: ExitStack, tmp_path: Path
) -> None:
    path = ended.path / name
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match=f"{name} is a link"):
        stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["checkpoints/latest", "checkpoints/step-1.bak", "rollouts/best.jsonl.zst"])
def test_links_that_no_launch_touches_are_not_in_the_way(
    name: str, ended: RunFolder, stack: ExitStack, tmp_path: Path
) -> None:
    (ended.path / name).symlink_to(tmp_path / "elsewhere")
    stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))


def test_temporary_files_of_a_killed_driver_are_removed(ended: RunFolder, stack: ExitStack) -> None:
    ours, others = ended.path / ".state.json.abcd1234.tmp", ended.path / ".notes.tmp"
    for path in (ours, others):
        path.touch()
    stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))
    assert (ours.exists(), others.exists()) == (False, True)


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_leaves_the_decision_to_the_state(
    error: int,
    ended: RunFolder,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def flock(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))
    assert "has no locks" in caplog.text
    write_state(ended.path)
    with pytest.raises(RunFolderError, match=f"process {os.getpid()} on"):
        stack.enter_context(claim_folder(ended.path.parent, "a", resume=True, new=False))


@pytest.mark.parametrize("lock", ["link", "hard link", "not locked", "missing", "fifo"])
def test_a_file_that_a_process_has_open_for_another_reason_is_no_claim(
    lock: str, ended: RunFolder, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    ended.driver_lock.unlink(missing_ok=True)
    with victim.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if lock == "link":
            ended.driver_lock.symlink_to(victim)
        elif lock == "hard link":
            ended.driver_lock.hardlink_to(victim)
        elif lock == "fifo":
            os.mkfifo(ended.driver_lock)
        with ended.driver_lock.open("a+") if lock == "not locked" else ExitStack():
            assert not is_claimed_by(ended, os.getpid())


def test_a_run_that_is_a_link_is_not_resumed(ended: RunFolder, stack: ExitStack, tmp_path: Path) -> None:
    (ended.path.parent / "b").symlink_to(ended.path)
    with pytest.raises(RunFolderError, match="b is a link"):
        stack.enter_context(claim_folder(ended.path.parent, "b", resume=True, new=False))


def test_a_folder_with_a_pipe_is_not_resumed(ended: RunFolder) -> None:
    ended.metrics.unlink(missing_ok=True)
    os.mkfifo(ended.metrics)
    with (
        pytest.raises(RunFolderError, match=r"metrics\.jsonl is not a regular file: move it away"),
        claim_folder(ended.path.parent, ended.name, resume=True, new=False),
    ):
        pass
