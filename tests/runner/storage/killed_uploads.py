"""Uploads a second step, and is killed at every n-th request in turn. Prints how many moments there were."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.storage.bucket import Bucket, open_bucket
from tests.runner.storage.stored_runs import make_run, mirror_of, take_step, uploaded

Result = TypeVar("Result")


class Deadly(Bucket):
    """Kills the process before a request."""

    moments_left = -1

    async def _tried(self, request: Callable[[], Awaitable[Result]], key: str) -> Result:
        if self.moments_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.moments_left -= 1
        return await super()._tried(request, key)


async def upload(folder: Path, bucket: Bucket, moments: int) -> None:
    run = make_run(folder / "run")
    await uploaded(run, mirror_of(bucket, run, keep=1), 1, keep=1)
    bucket.__class__ = Deadly
    bucket.moments_left = moments  # type: ignore[attr-defined]
    mirror = mirror_of(bucket, run, keep=1)
    checkpoints = Checkpoints(run.checkpoints, 1, mirror=mirror)
    await take_step(run, checkpoints, 2)
    working = asyncio.create_task(mirror.run())
    await mirror.finish()
    working.cancel()


if __name__ == "__main__":
    number, stride = 0, int(sys.argv[2])
    while True:
        # this process makes no request: its forks start obstore's threads
        child = os.fork()
        if child == 0:
            folder = Path(sys.argv[1]) / str(number)
            url = f"{sys.argv[3]}/{number}" if len(sys.argv) > 3 else f"file://{folder / 'bucket'}"
            asyncio.run(upload(folder, open_bucket(url), stride * number))
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
        number += 1
    print(number)
