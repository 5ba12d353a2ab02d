"""What an attempt does with the folders of others, in a process of its own."""

import signal
import subprocess
from pathlib import Path

import pytest

from rlrun.runner.submission.attempt import Next, after_attempt
from rlrun.runner.submission.folder import Attempt, SubmissionFolder
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


def attempts(*ended: tuple[int, int]) -> list[Attempt]:
    return [Attempt(id=f"1.{number}", code=code, step=step) for number, (code, step) in enumerate(ended)]


@pytest.mark.parametrize(
    ("ended", "from_outside", "follows"),
    [
        pytest.param([(0, 12)], False, Next.END, id="done"),
        pytest.param([(2, 0)], False, Next.END, id="the spec is wrong"),
        pytest.param([(3, 5)], False, Next.END, id="the job failed"),
        pytest.param([(130, 5)], False, Next.END, id="its user stopped it"),
        pytest.param([(75, 5)], False, Next.AGAIN, id="preempted"),
        pytest.param([(69, 5)], False, Next.AGAIN, id="a node was lost"),
        pytest.param([(-signal.SIGUSR1, 0)], False, Next.AGAIN, id="asked before it had a handler"),
        pytest.param([(-signal.SIGKILL, 5)], False, Next.END, id="killed"),
        pytest.param([(75, 5)], True, Next.END, id="the scheduler ends the job itself"),
        pytest.param([(75, 0), (75, 0)], False, Next.AGAIN, id="twice before the first step"),
        pytest.param([(75, 0), (75, 0), (75, 0)], False, Next.IDLE, id="never comes to a step"),
        pytest.param([(75, 5), (75, 5), (75, 5)], False, Next.AGAIN, id="the first of three saved"),
        pytest.param(
            [(75, 5), (75, 5), (69, 5), (75, 5)], False, Next.IDLE, id="three in a row saved nothing"
        ),
        pytest.param([(75, 0), (75, 0), (75, 4), (75, 4)], False, Next.AGAIN, id="one of three saved"),
        pytest.param([(75, 5), (75, 5), (75, 5), (0, 9)], False, Next.END, id="done after idle attempts"),
    ],
)
def test_what_follows_an_attempt(ended: list[tuple[int, int]], from_outside: bool, follows: Next) -> None:
    assert after_attempt(attempts(*ended), idle_attempts=3, ended_from_outside=from_outside) is follows
