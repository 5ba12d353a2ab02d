"""Restores a run from an object store on a machine that does not have it, or has an older state of it.

newest manifest ─▶ files that are missing or differ, each part checked ─▶ rename checkpoints/.step-N.tmp
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from rlrun.converters.folders.checksums import checksum
from rlrun.models.foreign_files import open_regular
from rlrun.models.object_store import StorageError
from rlrun.runner.checkpoints.folder import (
    checkpoint_of,
    create_empty,
    move_aside,
    newest_step,
    temporary_path,
)
from rlrun.runner.checkpoints.reading import best_step
from rlrun.runner.contracts.errors import LaunchRefused
from rlrun.runner.host.atomic_files import sync_tree
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.records.run_folder import PRIVATE, RunFolder
from rlrun.runner.storage.bucket import Bucket, run_bucket
from rlrun.runner.storage.manifest import (
    Part,
    StepManifest,
    StoredFile,
    manifest_key,
    read_manifest,
    stored_steps,
)
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.job import Spec
from rlrun.specs.step_names import step_name

_AT_A_TIME = 4
_READS = 3
"""How often a part is read whose checksum is wrong: it may have been damaged on its way."""


class StoredRun:
    """What an object store has of a run."""

    def __init__(self, bucket: Bucket, steps: list[int]) -> None:
        self._bucket = bucket
        self._steps = steps

    @property
    def newest(self) -> int | None:
        """The newest complete step; None if there is none."""
        return max(self._steps, default=None)

    @property
    def url(self) -> str:
        """The run's address."""
        return self._bucket.url

    def is_elsewhere(self, folder: RunFolder) -> bool:
        """Whether the store has the run and this machine has not."""
        return self.newest is not None and not folder.was_launched

    def check_empty(self) -> None:
        """Raises LaunchRefused if the store has a run, which a new run of its name would mix with."""
        if self.newest is not None:
            raise LaunchRefused(
                f"{self.url} has step {self.newest} of a run: continue it (--resume), start another "
                "run beside it (--new), choose another name (--name), or delete it there",
                Code.RUN_FOLDER,
            )

    def is_ahead_of(self, folder: RunFolder) -> bool:
        """Whether the store has a newer step than the folder."""
        local = newest_step(folder.checkpoints)
        return self.newest is not None and (local is None or local < self.newest)

    def restore(self, folder: RunFolder) -> int:
        """Makes the folder a run whose newest checkpoint is the store's; returns the number of bytes read.

        Local files that differ are set aside. Raises LaunchRefused if the store cannot be read or a file is
        damaged: the folder then has no new checkpoint, and restoring it again continues.
        """
        try:
            return asyncio.run(self._restore(folder))
        except (StorageError, ValueError) as error:
            raise LaunchRefused(f"{error}{self._cure()}", Code.CHECKPOINT) from error

    async def _restore(self, folder: RunFolder) -> int:
        assert self.newest is not None
        manifest = await read_manifest(self._bucket, self.newest)
        size = await self._restore_records(manifest, folder)
        size += await self._restore_checkpoint(manifest, folder)
        best = best_step(folder.checkpoints / step_name(self.newest))
        if best is not None and best in self._steps and checkpoint_of(folder.checkpoints, best) is None:
            size += await self._restore_checkpoint(await read_manifest(self._bucket, best), folder)
        return size

    async def _restore_records(self, manifest: StepManifest, folder: RunFolder) -> int:
        """Restores everything but the checkpoint. Its state is last: before, the folder is not a run."""
        files = [file for file in manifest.files if not file.path.startswith("checkpoints/")]
        files.sort(key=lambda file: file.path == folder.state.name)
        needed = [file for file in files if not _has(folder.path / file.path, file)]
        _set_aside(folder, [file.path for file in needed if (folder.path / file.path).exists()])
        return await self._read_files([(file, folder.path / file.path) for file in needed])

    async def _restore_checkpoint(self, manifest: StepManifest, folder: RunFolder) -> int:
        final = folder.checkpoints / step_name(manifest.step)
        temporary = temporary_path(final)
        create_empty(temporary)
        prefix = f"checkpoints/{final.name}/"
        files = [
            (file, temporary / file.path.removeprefix(prefix))
            for file in manifest.files
            if file.path.startswith(prefix)
        ]
        size = await self._read_files(files)
        await asyncio.to_thread(sync_tree, temporary)
        move_aside(final)
        temporary.rename(final)
        return size

    async def _read_files(self, files: Iterable[tuple[StoredFile, Path]]) -> int:
        limit = asyncio.Semaphore(_AT_A_TIME)
        return sum(await gather_or_first_cause([self._read_file(file, path, limit) for file, path in files]))

    async def _read_file(self, file: StoredFile, target: Path, limit: asyncio.Semaphore) -> int:
        async with limit:
            target.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.fetched")
            with temporary.open("wb") as output:
                for part in file.parts:
                    await asyncio.to_thread(output.write, await self._read_part(part))
            temporary.replace(target)
        return sum(part.size for part in file.parts)

    async def _read_part(self, part: Part) -> bytes:
        """Returns a part whose content is the one that was uploaded."""
        for _ in range(_READS):
            data = await self._bucket.get(part.key)
            if len(data) == part.size and checksum(data) == part.xxh128:
                return data
        raise ValueError(f"{self.url}/{part.key} is damaged: its checksum is not the one in the manifest")

    def _cure(self) -> str:
        """Returns the sentence that says how to continue without the newest step."""
        earlier = self._steps[-2:-1]
        then = f"continues from step {earlier[0]}" if earlier else "has nothing to continue from"
        assert self.newest is not None
        return f". Without {self.url}/{manifest_key(self.newest)} --resume {then}"


def stored_run(spec: Spec, name: str) -> StoredRun | None:
    """Returns what the object store of a spec has of the run `name`; None for a spec without a mirror.

    Raises LaunchRefused if the store cannot be read.
    """
    try:
        bucket = run_bucket(spec, name)
        return None if bucket is None else StoredRun(bucket, asyncio.run(stored_steps(bucket)))
    except StorageError as error:
        raise LaunchRefused(
            f"checkpoint.mirror cannot be read: {error}. Check the address, and the credentials in the "
            "environment",
            Code.CHECKPOINT,
        ) from error


def is_unstored(spec: Spec, name: str) -> bool:
    """Whether the object store of a spec has no run of this name. Raises LaunchRefused as `stored_run`."""
    stored = stored_run(spec, name)
    return stored is None or stored.newest is None


def _set_aside(folder: RunFolder, names: list[str]) -> None:
    """Moves files to one folder of `superseded/`."""
    if not names:
        return
    aside = folder.next_aside()
    for name in names:
        (aside / name).parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        (folder.path / name).rename(aside / name)


def _has(path: Path, stored: StoredFile) -> bool:
    """Returns whether a local file has the stored content."""
    try:
        with open_regular(path) as file:
            same = all(checksum(file.read(part.size)) == part.xxh128 for part in stored.parts)
            return same and not file.read(1)
    except OSError:
        return False
