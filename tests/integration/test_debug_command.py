"""`rlrun debug` on a whole job: engines, rewards and a trainer start, and one prompt goes through them."""

import os
import re
import subprocess
import sys

import pytest

from tests.integration.jobs import MAIN, Jobs
from tests.waiting import PATIENCE


@pytest.mark.slow
def test_one_prompt_from_row_to_loss(jobs: Jobs) -> None:
    settings = ["--set", 'filters=[{type="truncated"}]', "--row", "3", "--sample", "1", "--tokens", "400"]
    command = [sys.executable, "-c", MAIN, "debug", "job.toml", *settings]
    ended = subprocess.run(
        command,
        cwd=jobs.folder,
        env=os.environ | jobs.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert re.match(r"row \d+\n  prompt  say \d+\n  label", ended.stdout)
    assert ended.stdout.count("reward short = ") == 4
    [gap] = re.findall(r"gap of log-probs: mean (\S+),", ended.stdout)
    assert float(gap) < 1e-4
    [loss] = re.findall(r"train/loss +(\S+)", ended.stdout)
    assert abs(float(loss)) < 1
    assert "filters: drop this group: truncated" in ended.stdout
    assert not (jobs.folder / "runs").exists(), "it keeps no run"
