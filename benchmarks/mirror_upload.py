"""Uploads of a checkpoint by `checkpoint.mirror`, and of the same bytes by one plain put, in MB/s.

    python benchmarks/mirror_upload.py s3://bucket/benchmark --megabytes 400

Credentials and the endpoint come from the environment. Prints JSON.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import obstore

from rlrun.models.object_store import open_store
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.storage.bucket import open_bucket
from rlrun.runner.storage.upload import StepUpload, take_ownership
from rlrun.specs.step_names import step_name


async def seconds_of(work: Callable[[], Awaitable[object]]) -> float:
    """Returns the time that a piece of work takes."""
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


async def measure(url: str, megabytes: int, repeats: int) -> dict[str, float]:
    """Returns the best speed of each way, which take turns."""
    with tempfile.TemporaryDirectory() as name:
        run = RunFolder(Path(name) / "run")
        trainer = run.checkpoints / step_name(1) / "trainer"
        trainer.mkdir(parents=True)
        (trainer.parent / "driver.json").write_text("{}")
        file = trainer / "__0_0.distcp"
        file.write_bytes(os.urandom(megabytes << 20))
        best: dict[str, float] = {}
        for number in range(repeats):
            bucket, attempt = open_bucket(f"{url}/{number}"), f"a{number}"
            await take_ownership(bucket, attempt)
            upload = StepUpload(bucket, run, attempt, 1, {})
            store = open_store(url)
            put = {
                "mirror": upload.run,
                "put": lambda: obstore.put_async(store, "plain", file),  # noqa: B023
            }
            for way, work in put.items():
                speed = megabytes * 1.048576 / await seconds_of(work)
                best[way] = max(best.get(way, 0.0), round(speed, 1))
        return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.url, given.megabytes, given.repeats))))
