"""Weights as safetensors in a folder that trainer and engines see, a file for each bucket.

    folder/7/model-00001-of-00009.safetensors …    everything of version 7
    folder/7-changed/…                             of it, the files whose bytes are not those of version 6

A file that did not change is a second name (a hard link) of the one before. A version's folder is removed
when the next but one is written.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from rlrun.converters.tensors.precision import dtype_named
from rlrun.converters.tensors.safetensors_format import Described, make_header, make_index
from rlrun.runner.contracts.carriers import FolderWeights
from rlrun.runner.weights.buckets import Bucket, WeightSet, views_of


class FolderWriter:
    """The writer's side; one bucket is in memory at a time."""

    def __init__(self, folder: Path, buckets: Sequence[Bucket], *, changed_only: bool) -> None:
        """`changed_only`: also collect what changed, for engines that have the version before."""
        self._folder = folder
        self._buckets = buckets
        self._changed_only = changed_only
        self._versions: list[int] = []
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def write(self, weights: WeightSet, version: int) -> FolderWeights:
        """Write a whole set of weights. OSError where the disk is full, ValueError for other tensors."""
        if not len(self._buffer):
            self._buffer = torch.empty(max(one.size for one in self._buckets), dtype=torch.uint8)
            shutil.rmtree(self._folder, ignore_errors=True)  # of a trainer that was killed
        before = self._path(self._versions[-1]) if self._versions else None
        made, part = self._path(version), self._folder / f"{version}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        changed = []
        for bucket, file in zip(self._buckets, self._files, strict=True):
            weights.put(views_of(self._buffer, bucket), bucket)
            if self._write_file(part / file, bucket, None if before is None else before / file):
                changed.append(file)
        (part / "model.safetensors.index.json").write_bytes(self._index())
        shutil.rmtree(made, ignore_errors=True)
        part.rename(made)
        since = self._versions[-1] if self._changed_only and self._versions else None
        update = FolderWeights(
            str(made),
            sum(one.size for one in self._buckets),
            version,
            None if since is None else self._collect(made, changed),
            -1 if since is None else since,
            weights.checksums(),
        )
        self._forget(version)
        return update

    def close(self) -> None:
        """Remove every folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _files(self) -> list[str]:
        count = len(self._buckets)
        return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]

    def _path(self, version: int) -> Path:
        return self._folder / str(version)

    def _write_file(self, path: Path, bucket: Bucket, before: Path | None) -> bool:
        """Write what the buffer holds, unless it stands in `before`; whether it does not."""
        head, _ = make_header(_described(bucket))
        data = self._buffer[: bucket.size].numpy()
        if before is not None and before.exists():
            stored = torch.from_file(str(before), size=len(head) + bucket.size, dtype=torch.uint8)
            if torch.equal(stored[len(head) :], self._buffer[: bucket.size]):
                os.link(before, path)
                return False
        with path.open("wb") as file:
            file.write(head)
            file.write(data)
        return True

    def _collect(self, made: Path, changed: list[str]) -> str:
        """A folder of the changed files; of the first, where none is: a server loads no empty folder."""
        folder = self._folder / f"{made.name}-changed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file in changed or self._files[:1]:
            os.link(made / file, folder / file)
        return str(folder)

    def _index(self) -> bytes:
        described = {name: one for bucket in self._buckets for name, one in _described(bucket).items()}
        named = zip(self._files, self._buckets, strict=True)
        return make_index(described, {file: [slot.name for slot in one.slots] for file, one in named})

    def _forget(self, version: int) -> None:
        """Keep this version and the one before, which an engine may still read."""
        kept = [*[one for one in self._versions if one != version][-1:], version]
        for old in set(self._versions) - set(kept):
            shutil.rmtree(self._path(old), ignore_errors=True)
            shutil.rmtree(self._folder / f"{old}-changed", ignore_errors=True)
        self._versions = kept


def _described(bucket: Bucket) -> dict[str, Described]:
    return {slot.name: Described(dtype_named(slot.dtype), slot.shape) for slot in bucket.slots}
