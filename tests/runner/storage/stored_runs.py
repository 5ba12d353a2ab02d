"""A run's folder with checkpoints of a trainer, as a job leaves it, and its mirror in a folder."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from rlrun.converters.folders.checksums import checksum
from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.host.process_identity import Owner
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.storage.bucket import Bucket, open_bucket
from rlrun.runner.storage.manifest import read_manifest, stored_steps
from rlrun.runner.storage.mirror import BucketMirror
from rlrun.runner.storage.restore import StoredRun

PART = 1000


class Weights:
    """A trainer whose state at a step is bytes that follow from the step."""

    def __init__(self, step: int) -> None:
        self._step = step

    async def save(self, folder: Path) -> dict[str, str]:
        files = {folder / f"__{rank}_0.distcp": weights(self._step, rank) for rank in range(2)}
        for path, data in files.items():
            path.write_bytes(data)
        return {str(path): checksum(data) for path, data in files.items()}


def weights(step: int, rank: int) -> bytes:
    """Returns three parts and a half."""
    return bytes((step + rank + number) % 256 for number in range(3 * PART + PART // 2))


def bucket_in(folder: Path) -> Bucket:
    return open_bucket(f"file://{folder}")


def mirror_of(bucket: Bucket, run: RunFolder, **settings: Any) -> BucketMirror:
    return BucketMirror(bucket, run, **{"keep": 2, "part_bytes": PART, "first_pause": 0.0, **settings})


def make_run(path: Path) -> RunFolder:
    """Returns a run that was launched and has done nothing."""
    run = RunFolder(path)
    path.mkdir(parents=True)
    run.make()
    run.spec.write_text("name = 'run'\n")
    run.lock.write_text("{}")
    owner = Owner.current().model_dump()
    times = {"started": "2026-01-01T00:00:00+00:00", "updated": "2026-01-01T00:00:00+00:00"}
    run.write_state(
        {**owner, **times, "status": "running", "step": 0, "steps": 9, "metrics": {}, "error": None}
    )
    return run


async def take_step(run: RunFolder, checkpoints: Checkpoints, step: int, best: int | None = None) -> None:
    """Leaves what a step leaves, and saves it."""
    with run.metrics.open("a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\n")
    (run.rollouts / f"step-{step}.jsonl.zst").write_bytes(b"samples %d" % step)
    evaluation = None if best is None else {"metric": "eval/x/reward", "step": best, "value": 1.0}
    driver = {"progress": {"step": step, "best": evaluation}, "data": {"position": 8 * step}}
    await checkpoints.save(Weights(step), step, driver, best=best)  # type: ignore[arg-type]


async def uploaded(run: RunFolder, mirror: BucketMirror, *steps: int, keep: int = 2) -> None:
    """Takes steps, and waits after each until it is uploaded."""
    checkpoints = Checkpoints(run.checkpoints, keep, mirror=mirror)
    working = asyncio.create_task(mirror.run())
    for step in steps:
        await take_step(run, checkpoints, step)
        await mirror.finish()
    await end(working)


async def end(working: "asyncio.Task[None]") -> None:
    working.cancel()
    await asyncio.wait([working])


async def stored_in(bucket: Bucket) -> StoredRun:
    return StoredRun(bucket, await stored_steps(bucket))


async def unnamed_objects(bucket: Bucket) -> set[str]:
    """Returns the objects that belong to no step, after checking that every step is whole."""
    named: set[str] = set()
    for step in await stored_steps(bucket):
        manifest = await read_manifest(bucket, step)
        for file in manifest.files:
            for part in file.parts:
                assert checksum(await bucket.get(part.key)) == part.xxh128
        named |= manifest.keys
    return {*await bucket.list("data/"), *await bucket.list("samples/")} - named


def content(run: RunFolder, steps: list[int]) -> dict[str, bytes]:
    """Returns the files that a run continues from."""
    paths = [run.metrics, run.spec, run.lock, *run.rollouts.iterdir()]
    for step in steps:
        paths += [path for path in (run.checkpoints / f"step-{step}").rglob("*") if path.is_file()]
    return {os.path.relpath(path, run.path): path.read_bytes() for path in paths}
