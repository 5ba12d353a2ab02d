"""Uploads a step: its files in parts, then the manifest, if there is none.

checkpoints/step-N/*  ─┐
metrics, state, spec   ├─▶ parts, four at a time ─▶ steps/N.json (If-None-Match: *)
samples that are new  ─┘
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlrun.converters.folders.checksums import checksum
from rlrun.models.foreign_files import open_regular
from rlrun.runner.checkpoints.folder import checkpoint_of
from rlrun.runner.host.atomic_files import json_bytes
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.records.metrics_file import read_lines, split_at_step
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_images import FOLDER as IMAGES
from rlrun.runner.storage.bucket import Bucket, Exists
from rlrun.runner.storage.manifest import (
    DATA,
    OWNER,
    SAMPLES,
    Part,
    StepManifest,
    StoredFile,
    manifest_key,
    read_manifest,
)
from rlrun.specs.step_names import step_name

PART_BYTES = 32 << 20
"""Size of an object: each is held in memory while it is sent."""
_AT_A_TIME = 4
"""Parts that are sent at the same time."""


class LostOwnership(Exception):
    """A later launch of the run writes to the bucket; the message names it."""


@dataclass(frozen=True, slots=True)
class StepUpload:
    """Uploads one step of one launch."""

    bucket: Bucket
    folder: RunFolder
    attempt: str
    step: int
    stored: Mapping[str, StoredFile]
    """Sample files that the bucket has, by their paths in the run."""
    trusts_stored: bool = True
    """This launch has uploaded or compared all files of `stored`, so that their sizes suffice."""
    part_bytes: int = PART_BYTES

    async def run(self) -> StepManifest:
        """Returns the manifest after writing it.

        Raises StorageError if the bucket fails, FileNotFoundError if the checkpoint was deleted meanwhile,
        and LostOwnership if another launch may write now.
        """
        limit = asyncio.Semaphore(_AT_A_TIME)
        paths, records = await asyncio.to_thread(lambda: (list(self._paths()), list(self._records())))
        files = await gather_or_first_cause(
            [
                *(self._file(path, limit) for path in paths),
                *(self._record(name, data, limit) for name, data in records),
            ]
        )
        manifest = StepManifest(step=self.step, attempt=self.attempt, files=tuple(files))
        await check_owner(self.bucket, self.attempt)
        try:
            await self.bucket.create(manifest_key(self.step), manifest.model_dump_json().encode())
        except Exists:
            # an earlier try of this request wrote it, or a launch that lost its ownership only now
            there = await read_manifest(self.bucket, self.step)
            if there.attempt != self.attempt:
                raise LostOwnership(f"launch {there.attempt} has written step {self.step}") from None
        return manifest

    def _paths(self) -> Iterator[Path]:
        """Yields the files that do not change any more: the checkpoint's, and samples until its step."""
        checkpoint = checkpoint_of(self.folder.checkpoints, self.step)
        if checkpoint is None:
            raise FileNotFoundError(f"{step_name(self.step)} was deleted")
        yield from sorted(path for path in checkpoint.rglob("*") if path.is_file())
        yield from self.folder.sample_files_until(self.step)
        yield from sorted((self.folder.rollouts / IMAGES).glob("*.png"))

    def _records(self) -> Iterator[tuple[str, bytes]]:
        """Yields the files that grow, as they are at this step."""
        folder = self.folder
        kept, _ = split_at_step(read_lines(folder.metrics), self.step)
        yield folder.metrics.name, b"".join(line.raw for line in kept)
        # the machine that restores the run is another one: there it does not run
        state = folder.read_state() | {"status": "interrupted", "step": self.step}
        yield folder.state.name, json_bytes(state)
        for path in (folder.spec, folder.lock, folder.timeline, folder.vocabulary):
            if path.is_file():
                yield self._name(path), path.read_bytes()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder.path).as_posix()

    async def _file(self, path: Path, limit: asyncio.Semaphore) -> StoredFile:
        """Uploads a file, unless the bucket has it."""
        name = self._name(path)
        stored = self.stored.get(name)
        if stored is not None and await asyncio.to_thread(self._is_stored, path, stored):
            return stored
        size = (await asyncio.to_thread(path.stat)).st_size
        root = f"{DATA}{step_name(self.step)}" if name.startswith("checkpoints/") else SAMPLES.rstrip("/")
        key = f"{root}/{self.attempt}/{name}"
        starts = range(0, max(size, 1), self.part_bytes)

        async def send(start: int) -> Part:
            async with limit:
                data = await asyncio.to_thread(_read, path, start, min(self.part_bytes, size - start))
                return await self._put(key if len(starts) == 1 else f"{key}.{start}", data)

        return StoredFile(
            path=name, parts=tuple(await gather_or_first_cause([send(start) for start in starts]))
        )

    async def _record(self, name: str, data: bytes, limit: asyncio.Semaphore) -> StoredFile:
        async with limit:
            part = await self._put(f"{DATA}{step_name(self.step)}/{self.attempt}/{name}", data)
            return StoredFile(path=name, parts=(part,))

    def _is_stored(self, path: Path, stored: StoredFile) -> bool:
        """Returns whether a file has the content that the bucket has."""
        if path.stat().st_size != sum(part.size for part in stored.parts):
            return False
        if self.trusts_stored:
            return True
        with open_regular(path) as file:
            return all(checksum(file.read(part.size)) == part.xxh128 for part in stored.parts)

    async def _put(self, key: str, data: bytes) -> Part:
        await self.bucket.put(key, data)
        return Part(key=key, size=len(data), xxh128=checksum(data))


async def take_ownership(bucket: Bucket, attempt: str) -> None:
    """Makes a launch the one that writes to the bucket; an earlier one stops at its next step."""
    await bucket.put(OWNER, json.dumps({"attempt": attempt}).encode())


async def check_owner(bucket: Bucket, attempt: str) -> None:
    """Raises LostOwnership if a later launch writes to the bucket."""
    owner = json.loads(await bucket.get(OWNER)).get("attempt")
    if owner != attempt:
        raise LostOwnership(f"launch {owner} has continued this run")


def _read(path: Path, start: int, size: int) -> bytes:
    with open_regular(path) as file:
        file.seek(start)
        data = file.read(size)
    if len(data) != size:
        raise FileNotFoundError(f"{path} became shorter")
    return data
