"""Checkpoints in a real S3 server, which refuses, delays and damages uploads."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.runner.storage.bucket import open_bucket
from rlrun.runner.storage.manifest import stored_steps
from tests.integration.jobs import Ended, Jobs, Running
from tests.integration.s3_server import BUCKET, Proxy, environment, s3_server, why_missing
from tests.runner.storage.stored_runs import unnamed_objects
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))]
ROOT = Path(__file__).parents[2]
MIRRORED = {"checkpoint__mirror": f"s3://{BUCKET}/team", "checkpoint__interval": 2}


@pytest.fixture(scope="module")
def proxy(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Jobs and this process reach the server through it."""
    with s3_server(tmp_path_factory.mktemp("s3")) as port, Proxy(port, seed=1).running() as proxy:
        jobs.environment |= environment(proxy.port)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(proxy.port).items():
                patch.setenv(name, value)
            yield proxy


@pytest.fixture(scope="module")
def reference(jobs: Jobs) -> Ended:
    ended = jobs.run("reference")
    assert ended.code == 0, ended.output
    return ended


def lose(jobs: Jobs, running: Running) -> None:
    """The machine, with all that the run wrote on it."""
    running.wait()
    running.folder.path.rename(jobs.folder / f"lost-{running.process.pid}")


async def test_killed_and_preempted_a_run_continues_from_the_bucket_alone(
    jobs: Jobs, reference: Ended, proxy: Proxy
) -> None:
    proxy.harm = {"refused": 0.1, "late": 0.05, "changed": 0.1}
    hold = jobs.folder / "hold"
    hold.touch()
    jobs.environment["HOLD"] = str(hold)
    bucket = open_bucket(f"s3://{BUCKET}/team/job")
    killed = jobs.start("job", **MIRRORED)
    killed.until_step(5)  # the reward holds the job in its sixth step
    killed.until(lambda: "step 4 is in" in _log(killed), "the upload of the fourth step")
    killed.signal(signal.SIGKILL)
    lose(jobs, killed)
    hold.unlink()

    preempted = jobs.start("job", "--resume", **MIRRORED)
    preempted.until_step(7)
    preempted.signal(signal.SIGUSR1)
    assert preempted.wait().code == 75
    step = max(await stored_steps(bucket))
    assert step >= 7
    assert f"step {step} is in s3://{BUCKET}/team/job" in preempted.output
    lose(jobs, preempted)

    ended = jobs.run("job", "--resume-if-exists", **MIRRORED)
    assert ended.code == 0, ended.output
    assert ended.curve == reference.curve
    assert all(proxy.done.values())
    assert await unnamed_objects(bucket) == set()


async def test_without_the_server_training_continues_and_says_so(jobs: Jobs, proxy: Proxy) -> None:
    proxy.harm = {"refused": 1.0, "late": 0.0, "changed": 0.0}
    ended = jobs.run("alone", **MIRRORED, trainer__steps=2)
    assert ended.code == 0, ended.output
    assert "step 2 was not uploaded: " in ended.output and "503" in ended.output
    required = jobs.run("required", **MIRRORED, trainer__steps=2, checkpoint__mirror_required=True)
    assert required.code == 3
    assert "Repair the access to the bucket and continue with --resume" in required.output
    proxy.harm["refused"] = 0.0
    assert jobs.run("required", "--resume", **MIRRORED, trainer__steps=2).code == 0
    assert await stored_steps(open_bucket(f"s3://{BUCKET}/team/required")) == [2]


async def test_uploads_that_are_killed_at_any_request_leave_whole_steps(proxy: Proxy, tmp_path: Path) -> None:
    proxy.harm = dict.fromkeys(proxy.harm, 0.0)
    url = f"s3://{BUCKET}/killed"
    command = [sys.executable, "-m", "tests.runner.storage.killed_uploads", str(tmp_path), "1", url]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    moments = int(done.stdout)
    assert moments >= 20
    for number in range(moments + 1):
        bucket = open_bucket(f"{url}/{number}")
        assert (await stored_steps(bucket))[-1] in (1, 2)
        await unnamed_objects(bucket)  # every step that is there is whole


def _log(running: Running) -> str:
    path = running.folder.logs / "driver.log"
    return path.read_text() if path.exists() else ""
