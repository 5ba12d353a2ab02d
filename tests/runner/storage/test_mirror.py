import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlrun.models.object_store import StorageError
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.contracts.errors import JobError, LaunchRefused
from rlrun.runner.records.claim import claim_folder
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.storage.bucket import Bucket, open_bucket
from rlrun.runner.storage.manifest import StepManifest, read_manifest, stored_steps
from rlrun.runner.storage.mirror import uploading
from rlrun.runner.storage.restore import StoredRun, is_unstored
from tests.runner.storage.stored_runs import (
    bucket_in,
    content,
    end,
    make_run,
    mirror_of,
    stored_in,
    take_step,
    unnamed_objects,
    uploaded,
)
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]


class Failing(Bucket):
    """A bucket whose next writes fail, or are held back."""

    failures = 0
    held: asyncio.Event | None = None

    async def put(self, key: str, data: bytes) -> None:
        if self.held is not None and key.startswith("data/"):
            await self.held.wait()
        if self.failures:
            self.failures -= 1
            self.failed_requests += 1
            raise StorageError(f"{self.url}/{key}: 503 Slow Down")
        await super().put(key, data)


def failing(folder: Path) -> Failing:
    bucket = bucket_in(folder)
    bucket.__class__ = Failing
    return bucket  # type: ignore[return-value]


async def test_a_run_is_restored_where_it_never_was(tmp_path: Path) -> None:
    run, bucket = make_run(tmp_path / "here" / "run"), bucket_in(tmp_path / "bucket")
    await uploaded(run, mirror_of(bucket, run), 1, 2, 3)
    assert await stored_steps(bucket) == list(checkpoints_in(run.checkpoints)) == [2, 3]
    assert await unnamed_objects(bucket) == set()
    elsewhere = RunFolder(tmp_path / "elsewhere" / "run")
    elsewhere.path.mkdir(parents=True)
    elsewhere.make()
    stored = await stored_in(bucket)
    assert stored.is_elsewhere(elsewhere)
    await asyncio.to_thread(stored.restore, elsewhere)
    assert content(elsewhere, [3]) == content(run, [3])
    assert elsewhere.read_state()["status"] == "interrupted"
    assert elsewhere.read_state()["step"] == 3
    assert not stored.is_ahead_of(elsewhere)
    # the launch there continues the mirror, and sends no samples again
    mirror = mirror_of(bucket, elsewhere)
    await uploaded(elsewhere, mirror, 4)
    assert await stored_steps(bucket) == [3, 4]
    before, after = await read_manifest(bucket, 3), await read_manifest(bucket, 4)
    first = "rollouts/step-1.jsonl.zst"
    assert after.samples[first] == before.samples[first]
    with pytest.raises(LaunchRefused, match="has step 4 of a run: continue it"):
        (await stored_in(bucket)).check_empty()


async def test_an_older_state_of_the_run_is_brought_up_to_date(tmp_path: Path) -> None:
    run, bucket = make_run(tmp_path / "here" / "run"), bucket_in(tmp_path / "bucket")
    await uploaded(run, mirror_of(bucket, run), 1, 2)
    other = RunFolder(tmp_path / "there" / "run")
    other.path.mkdir(parents=True)
    other.make()
    await asyncio.to_thread((await stored_in(bucket)).restore, other)
    await uploaded(other, mirror_of(bucket, other), 3)
    run.metrics.write_text(run.metrics.read_text() + '{"step": 3, "loss": "of the lost machine"}\n')
    stored = await stored_in(bucket)
    assert stored.is_ahead_of(run)
    await asyncio.to_thread(stored.restore, run)
    assert content(run, [3]) == content(other, [3])
    assert "of the lost machine" in (run.superseded / "1" / "metrics.jsonl").read_text()


async def test_the_best_checkpoint_is_kept_and_restored(tmp_path: Path) -> None:
    run, bucket = make_run(tmp_path / "run"), bucket_in(tmp_path / "bucket")
    mirror = mirror_of(bucket, run, keep=1)
    checkpoints = Checkpoints(run.checkpoints, 1, mirror=mirror)
    working = asyncio.create_task(mirror.run())
    for step in (1, 2, 3):
        await take_step(run, checkpoints, step, best=1)
        await mirror.finish()
    await end(working)
    assert await stored_steps(bucket) == list(checkpoints_in(run.checkpoints)) == [1, 3]
    elsewhere = RunFolder(tmp_path / "elsewhere")
    elsewhere.path.mkdir()
    elsewhere.make()
    await asyncio.to_thread((await stored_in(bucket)).restore, elsewhere)
    assert content(elsewhere, [1, 3]) == content(run, [1, 3])


async def test_failed_requests_are_tried_again_and_counted(tmp_path: Path) -> None:
    run, bucket = make_run(tmp_path / "run"), failing(tmp_path / "bucket")
    bucket.failures = 3
    mirror = mirror_of(bucket, run)
    await uploaded(run, mirror, 1)
    assert await stored_steps(bucket) == [1]
    metrics = mirror.take_metrics()
    assert metrics["perf/upload_failures"] == 3
    assert metrics["perf/upload_lag"] == 0
    assert metrics["perf/upload_bytes"] > 7000
    assert mirror.take_metrics()["perf/upload_bytes"] == 0


@pytest.mark.parametrize("required", [False, True])
async def test_a_step_that_cannot_be_uploaded_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, required: bool
) -> None:
    run, bucket = make_run(tmp_path / "run"), failing(tmp_path / "bucket")
    bucket.failures = 10**6
    mirror = mirror_of(bucket, run, required=required)
    if required:
        with pytest.raises(JobError, match=r"503 Slow Down\. Repair the access to the bucket"):
            await uploaded(run, mirror, 1)
        return
    await uploaded(run, mirror, 1)
    assert "step 1 was not uploaded" in caplog.text and "503 Slow Down" in caplog.text
    assert mirror.take_metrics()["perf/upload_lag"] == 1
    bucket.failures = 0  # the next launch makes up for it
    await uploaded(run, mirror_of(bucket, run), 2)
    assert await stored_steps(bucket) == [1, 2]


async def test_a_slow_upload_keeps_its_checkpoint_and_skips_older_ones(tmp_path: Path) -> None:
    run, bucket = make_run(tmp_path / "run"), failing(tmp_path / "bucket")
    bucket.held = asyncio.Event()
    mirror = mirror_of(bucket, run, keep=1)
    checkpoints = Checkpoints(run.checkpoints, 1, mirror=mirror)
    working = asyncio.create_task(mirror.run())
    await take_step(run, checkpoints, 1)
    await until(lambda: mirror.holds(1) and bucket.sent_bytes > 0, "the upload of step 1")
    for step in (2, 3):
        await take_step(run, checkpoints, step)
    assert list(checkpoints_in(run.checkpoints)) == [1, 3]
    bucket.held.set()
    await mirror.finish()
    await end(working)
    assert await stored_steps(bucket) == [3]
    assert await unnamed_objects(bucket) == set()


async def test_a_lost_launch_stops_writing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its machine was only cut off, and a later launch has continued the run."""
    run, bucket = make_run(tmp_path / "run"), bucket_in(tmp_path / "bucket")
    old = mirror_of(bucket, run)
    checkpoints = Checkpoints(run.checkpoints, 2, mirror=old)
    working = asyncio.create_task(old.run())
    await take_step(run, checkpoints, 1)
    await old.finish()
    elsewhere = RunFolder(tmp_path / "elsewhere")
    elsewhere.path.mkdir()
    elsewhere.make()
    await asyncio.to_thread((await stored_in(bucket)).restore, elsewhere)
    await uploaded(elsewhere, mirror_of(bucket, elsewhere), 2)
    objects = await bucket.list("steps/")
    await take_step(run, checkpoints, 3)
    await working
    await take_step(run, checkpoints, 4)
    await old.finish()
    assert await bucket.list("steps/") == objects
    assert "has continued this run; this launch does not upload any more" in caplog.text


async def test_a_failed_job_still_uploads_its_last_checkpoint(tmp_path: Path) -> None:
    run, bucket = make_run(tmp_path / "run"), bucket_in(tmp_path / "bucket")
    mirror = mirror_of(bucket, run)
    with pytest.raises(JobError, match="the loss is nan"):
        async with uploading(mirror, PATIENCE):
            await take_step(run, Checkpoints(run.checkpoints, 2, mirror=mirror), 1)
            raise JobError("the loss is nan")
    assert await stored_steps(bucket) == [1]


async def test_wrong_bytes_are_refused(tmp_path: Path) -> None:
    run, bucket = make_run(tmp_path / "run"), bucket_in(tmp_path / "bucket")
    await uploaded(run, mirror_of(bucket, run), 1, 2)
    part = next(part for file in (await read_manifest(bucket, 2)).files for part in file.parts[1:2])
    data = bytearray(await bucket.get(part.key))
    data[100] ^= 1
    await bucket.put(part.key, bytes(data))
    elsewhere = RunFolder(tmp_path / "elsewhere")
    elsewhere.path.mkdir()
    elsewhere.make()
    stored = await stored_in(bucket)
    with pytest.raises(LaunchRefused, match=r"is damaged.*000002.json --resume continues from step 1"):
        await asyncio.to_thread(stored.restore, elsewhere)
    assert not checkpoints_in(elsewhere.checkpoints)
    await bucket.delete([part.key])
    with pytest.raises(LaunchRefused, match="does not exist"):
        await asyncio.to_thread(stored.restore, elsewhere)


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "checkpoints/../../x", "logs/x", "checkpoints//x", "a\0", ""]
)
def test_a_manifest_cannot_name_files_outside_of_the_run(path: str) -> None:
    parts = [{"key": "data/x", "size": 1, "xxh128": "0"}]
    manifest = {"step": 1, "attempt": "a", "files": [{"path": path, "parts": parts}]}
    with pytest.raises(ValueError, match="is not a file of a run"):
        StepManifest.model_validate_json(json.dumps(manifest))


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
async def test_killed_at_any_moment_an_upload_leaves_whole_steps(tmp_path: Path, stride: int) -> None:
    command = [sys.executable, "-m", "tests.runner.storage.killed_uploads", str(tmp_path), str(stride)]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True
    )
    moments = int(done.stdout)
    assert moments > 30 / stride
    newest = []
    for number in range(moments + 1):
        folder = tmp_path / str(number)
        bucket = bucket_in(folder / "bucket")
        newest.append((await stored_steps(bucket))[-1])
        await unnamed_objects(bucket)  # every step that is there is whole
        elsewhere = RunFolder(folder / "elsewhere")
        elsewhere.path.mkdir()
        elsewhere.make()
        await asyncio.to_thread((await stored_in(bucket)).restore, elsewhere)
        assert list(checkpoints_in(elsewhere.checkpoints)) == newest[-1:]
        await uploaded(elsewhere, mirror_of(bucket, elsewhere, keep=1), 9, keep=1)
        assert await unnamed_objects(bucket) == set()  # what the killed launch left is gone
    assert newest == sorted(newest)
    assert {newest[0], newest[-1]} == {1, 2}


def test_an_unusable_address_is_one_line() -> None:
    with pytest.raises(StorageError, match=r"^gopher://x: ") as error:
        open_bucket("gopher://x")
    assert "\n" not in str(error.value)


async def test_a_step_whose_predecessor_cannot_be_deleted_is_no_failed_upload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(keys: Iterable[str]) -> None:
        if list(keys):
            raise StorageError("403 Forbidden")

    run, bucket = make_run(tmp_path / "run"), bucket_in(tmp_path / "bucket")
    with monkeypatch.context() as patch:
        patch.setattr(bucket, "delete", refuse)
        await uploaded(run, mirror_of(bucket, run, keep=1), 1, 2, keep=1)
    assert await stored_steps(bucket) == [1, 2]
    assert "not kept any more stays there" in caplog.text and "could not be uploaded" not in caplog.text
    await uploaded(run, mirror_of(bucket, run, keep=1), 3, keep=1)
    assert await stored_steps(bucket) == [3]


async def test_the_pauses_of_a_step_do_not_grow_with_the_failures_of_earlier_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def pause(waiting: Coroutine[Any, Any, Any], seconds: float) -> None:
        waiting.close()
        pauses.append(seconds)
        raise TimeoutError

    monkeypatch.setattr("rlrun.runner.storage.mirror.asyncio.wait_for", pause)
    run, bucket = make_run(tmp_path / "run"), failing(tmp_path / "bucket")
    bucket.failures = 1000
    await uploaded(run, mirror_of(bucket, run, first_pause=5.0, keep=1), 1, 2, 3, keep=1)
    assert pauses == [5.0, 10.0, 20.0] * 3


def test_a_new_run_takes_a_name_that_is_free_in_the_bucket_too(tmp_path: Path) -> None:
    run, bucket = make_run(tmp_path / "here/run-2"), bucket_in(tmp_path / "b/run-2")
    asyncio.run(uploaded(run, mirror_of(bucket, run), 1))
    settings = [f"checkpoint.mirror=file://{tmp_path}/b"]
    spec = load_checked_spec([ROOT / "tests/specs/base.toml"], settings).spec
    (tmp_path / "there/run").mkdir(parents=True)
    free = partial(is_unstored, spec)
    with claim_folder(tmp_path / "there", "run", resume=False, new=True, is_free=free) as folder:
        assert folder.name == "run-3"
    assert not (tmp_path / "there/run-2").exists()


def test_nothing_is_stored_yet(tmp_path: Path) -> None:
    stored = StoredRun(bucket_in(tmp_path / "bucket"), [])
    stored.check_empty()
    assert stored.newest is None
