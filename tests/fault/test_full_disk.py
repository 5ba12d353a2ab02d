"""A disk that fills up while a job runs: the job reports it, loses nothing, and can be resumed."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.conftest import STEPS
from tests.integration.jobs import Ended, Jobs


@pytest.fixture
def small_disk(jobs: Jobs) -> Iterator[Path]:
    """A file system of its own for the folders of runs; takes the rights to mount one."""
    disk = jobs.folder / "runs"
    disk.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_a_job_in_words_and_costs_no_finished_checkpoint(
    jobs: Jobs, reference: Ended, small_disk: Path
) -> None:
    settings = {"trainer__steps": STEPS, "checkpoint__interval": 1, "checkpoint__keep": 100}
    full = jobs.run("full-disk", **settings)
    assert full.code == 3, full.output
    [failed] = [line for line in full.output.splitlines() if line.startswith("failed:")]
    assert "No space left on device" in failed
    assert "Traceback" not in full.output
    complete = [path for path in full.folder.checkpoints.glob("step-*") if (path / "driver.json").is_file()]
    assert complete
    subprocess.run(["mount", "-o", "remount,size=256m", small_disk], check=True)
    ended = jobs.run("full-disk", "--resume", **settings)
    assert ended.code == 0, ended.output
    assert ended.curve == reference.curve
    print(f"{len(complete)} checkpoints were complete; {os.statvfs(small_disk).f_bfree} blocks are free now")
