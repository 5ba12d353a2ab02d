"""A machine that is taken away is given back when the attempt has ended."""

import threading
from pathlib import Path

from rlrun.runner.submission.folder import SubmissionFolder
from rlrun.runner.submission.node import TAKEN, release_machine
from tests.waiting import wait_until


def submission(tmp_path: Path) -> SubmissionFolder:
    folder = SubmissionFolder(tmp_path, "job")
    folder.make()
    return folder


def test_a_machine_without_an_attempt_is_released_at_once(tmp_path: Path) -> None:
    assert release_machine(submission(tmp_path), 0.0)


def test_an_attempt_is_asked_and_waited_for(tmp_path: Path) -> None:
    folder = submission(tmp_path)
    control = folder.make_control()
    released: list[bool] = []
    waiting = threading.Thread(target=lambda: released.append(release_machine(folder, 3000.0)))
    waiting.start()
    wait_until((control / TAKEN).exists, "the request")
    assert not released
    (control / TAKEN).unlink()
    control.rmdir()
    waiting.join()
    assert released == [True]


def test_an_attempt_that_does_not_end_is_not_waited_for_longer(tmp_path: Path) -> None:
    folder = submission(tmp_path)
    control = folder.make_control()
    assert not release_machine(folder, 0.0)
    assert folder.controls() == [control]
