"""Hands weights over as safetensors in a folder that the trainer and the engines see, one file per bucket.

    rank 0 ──bucket──▶ file, file, …   then driver ──POST /update_weights_from_disk (the folder)──▶ servers

    folder/7/model-00001-of-00009.safetensors …    everything of version 7
    folder/7-changed/…                             only the files whose bytes differ from those of version 6

A file that did not change is a hard link to that of the version before, so it takes no time to write and no
space. The last two versions are kept.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import orjson
import torch

from rlrun.converters.tensors.precision import parse_dtype
from rlrun.converters.tensors.safetensors_format import TensorInfo, make_header, make_index
from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.carriers.disk.updates import FolderAdapters, FolderWeights
from rlrun.runner.weights.page_locking import HOST, PageLock, lock_where_possible
from rlrun.runner.weights.rank_weights import RankAdapters, Tensors
from rlrun.runner.weights.server_adapters import ServerAdapterWriter
from rlrun.specs.sections.job import Spec


class FolderWriter:
    """Writes each update into a new folder; one bucket is in memory at a time."""

    def __init__(
        self,
        folder: Path,
        buckets: Sequence[Bucket],
        *,
        changed_only: bool,
        source: torch.device = HOST,
        settings: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """`changed_only`: also make a folder of changed files, for engines that have the version before.
        `source`: where tensors are copied from. `settings`: further files of each folder, by name.
        """
        self._folder = folder
        self._buckets = buckets
        self._changed_only = changed_only
        self._versions: list[int] = []
        """Versions whose folders exist: at most the last two."""
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._page_lock: PageLock | None = None
        self._source = source
        self._settings = settings

    def write(self, weights: WeightSet, version: int) -> FolderWeights:
        """Writes all tensors. Raises OSError if the disk is full, ValueError for unexpected tensors."""
        if not len(self._buffer):
            self._buffer = torch.empty(max(bucket.size for bucket in self._buckets), dtype=torch.uint8)
            self._page_lock = lock_where_possible(self._buffer, self._source)
            shutil.rmtree(self._folder, ignore_errors=True)  # left by a trainer that was killed
        previous = self._versions[-1] if self._versions else None
        changed = self._write_files(weights, version, None if previous is None else self._path(previous))
        since = previous if self._changed_only else None
        update = FolderWeights(
            str(self._path(version)),
            sum(bucket.size for bucket in self._buckets),
            version,
            None if since is None else self._link_changed(version, changed),
            -1 if since is None else since,
            weights.checksums(),
        )
        self._remove_old(version)
        return update

    def close(self) -> None:
        """Removes the folders of all versions."""
        if self._page_lock is not None:
            self._page_lock.release()
            self._page_lock = None
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _files(self) -> list[str]:
        count = len(self._buckets)
        return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]

    def _path(self, version: int) -> Path:
        return self._folder / str(version)

    def _write_files(self, weights: WeightSet, version: int, previous: Path | None) -> list[str]:
        """Writes a version's folder and returns the files that differ from those in `previous`.

        The folder gets its name when it is complete: an engine never reads one that is being written.
        """
        partial = self._folder / f"{version}.part"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        changed = []
        for bucket, file in zip(self._buckets, self._files, strict=True):
            weights.fill(self._buffer, bucket)
            if self._write_file(partial / file, bucket, None if previous is None else previous / file):
                changed.append(file)
        for name, content in {"model.safetensors.index.json": self._index(), **self._settings}.items():
            (partial / name).write_bytes(content)
        shutil.rmtree(self._path(version), ignore_errors=True)
        partial.rename(self._path(version))
        return changed

    def _write_file(self, path: Path, bucket: Bucket, previous: Path | None) -> bool:
        """Writes the buffer as one file, or links `previous` if it has the same bytes; returns whether it was
        written.
        """
        head, _ = make_header(_described(bucket))
        data = self._buffer[: bucket.size].numpy()
        if previous is not None and previous.exists():
            stored = torch.from_file(str(previous), size=len(head) + bucket.size, dtype=torch.uint8)
            if torch.equal(stored[len(head) :], self._buffer[: bucket.size]):
                os.link(previous, path)
                return False
        with path.open("wb") as file:
            file.write(head)
            file.write(data)
        return True

    def _link_changed(self, version: int, changed: list[str]) -> str:
        """Makes the folder of changed files and returns its path.

        It holds the first file where none changed, since a server refuses to load an empty folder.
        """
        folder = self._folder / f"{version}-changed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file in changed or self._files[:1]:
            os.link(self._path(version) / file, folder / file)
        return str(folder)

    def _index(self) -> bytes:
        described = {name: tensor for bucket in self._buckets for name, tensor in _described(bucket).items()}
        buckets = zip(self._files, self._buckets, strict=True)
        return make_index(described, {file: [slot.name for slot in bucket.slots] for file, bucket in buckets})

    def _remove_old(self, version: int) -> None:
        """Removes all but this version and the one before it, which an engine may still be reading."""
        kept = [*[old for old in self._versions if old != version][-1:], version]
        for old in set(self._versions) - set(kept):
            shutil.rmtree(self._path(old), ignore_errors=True)
            shutil.rmtree(self._folder / f"{old}-changed", ignore_errors=True)
        self._versions = kept


class FolderAdapterWriter(ServerAdapterWriter):
    """Writes folders that servers on all nodes see."""

    def __init__(self, spec: Spec, source: RankAdapters) -> None:
        super().__init__(spec, source)
        settings = {"adapter_config.json": orjson.dumps(self._config)}
        self._writer = FolderWriter(
            source.folder, [self._bucket], changed_only=False, source=source.device, settings=settings
        )

    def close(self) -> None:
        """Removes the folders."""
        if self._source.rank == 0:
            self._writer.close()

    def _store(self, tensors: Tensors, version: int) -> FolderAdapters:
        written = self._writer.write(WeightSet(tensors, self._form), version)
        assert written.folder is not None
        return FolderAdapters(written.folder, written.size, version, self._base, self._room)


def _described(bucket: Bucket) -> dict[str, TensorInfo]:
    return {slot.name: TensorInfo(parse_dtype(slot.dtype), slot.shape) for slot in bucket.slots}
