"""What an attempt does with the folders of others, in a process of its own."""

import subprocess
from pathlib import Path

from rlrun.runner.submission.folder import SubmissionFolder
from rlrun.specs.safe_python import own_python


def test_an_attempt_on_a_given_cluster_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    """Its user has stopped the job, so that it ends before it joins the cluster, which is not there."""
    folder = SubmissionFolder(tmp_path, "job")
    folder.make()
    folder.make_control()
    folder.stop.touch()
    command = own_python("-m", "rlrun", "attempt", str(folder.path), "--nodes=1", "--id=a-1")
    ended = subprocess.run(
        [*command, "--address=127.0.0.1:1", "--grace=0"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert "joining 1 nodes at 127.0.0.1:1" in ended.stdout
    assert [(attempt.id, attempt.code, attempt.step) for attempt in folder.read_attempts()] == [
        ("a-1", 130, 0)
    ]
    assert not folder.controls()
