"""A job whose plugins are in a file of a trusted folder, on a Ray cluster that knows nothing of the trust."""

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.jobs import MAIN, Jobs
from tests.waiting import PATIENCE

PLUGINS = """
import rlrun
from rlrun.plugins.algorithms.grpo import GRPO


@rlrun.reward
def brief(sample) -> float:
    return 1.0 - len(sample.tokens) / 16


class Own(GRPO):
    '''GRPO by another name.'''
"""


def test_every_process_of_a_job_may_import_trusted_files(jobs: Jobs, tmp_path: Path) -> None:
    jobs.folder.chmod(0o755)
    (jobs.folder / "own.py").write_text(PLUGINS)
    jobs.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    command = [sys.executable, "-c", MAIN, "plugins", "trust", "."]
    environment = os.environ | jobs.environment
    subprocess.run(
        command, cwd=jobs.folder, env=environment, check=True, timeout=PATIENCE, capture_output=True
    )
    settings = {"algorithm__type": "own.py:Own", "rewards": [{"type": "own.py:brief"}], "trainer__steps": 1}
    ended = jobs.run("trusted", **settings)
    assert ended.code == 0, ended.output
