"""Hands weights over as files with the elements that changed, in a folder that trainer and engines see.

    rank 0 ──bucket──▶ compared with the version before ──▶ files ──▶ driver ──▶ engines apply them

    folder/3/model-00001-of-00009.safetensors …     everything of version 3
    folder/4-delta/delta-00001.safetensors …        what changed from version 3 to version 4
    folder/5-delta/…                                what changed from version 4 to version 5

An engine that was started again, or missed updates, reads the last full version and the deltas after it, as
far as it lacks them. When the deltas together are as large as the model, a full version is written, so that
such an engine reads at most twice the model. Rank 0 keeps the version before in host memory.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.carriers.disk.updates import FolderWeights, WeightDelta
from rlrun.runner.weights.deltas.encoding import encode
from rlrun.runner.weights.page_locking import HOST, lock_where_possible
from rlrun.runner.weights.tensor_slots import tensors_in
from rlrun.runner.weights.writer import SentModel, StoredWriter
from rlrun.specs.derived.engine_groups import server_ranks


def delta_writer(sent: SentModel, folder: Path) -> StoredWriter:
    """Returns the writer of a carrier whose engines see `folder`."""
    engine, buckets, device = sent.spec.engine, sent.buckets(), sent.source.device
    processes = None if engine.type == "native" else server_ranks(sent.spec)
    return StoredWriter(sent, lambda: DeltaFolderWriter(folder, buckets, processes=processes, source=device))


class DeltaFolderWriter:
    """Writes what changed since the version before; one bucket is in memory besides that version."""

    def __init__(
        self,
        folder: Path,
        buckets: Sequence[Bucket],
        *,
        processes: int | None = None,
        source: torch.device = HOST,
    ) -> None:
        """`processes`: those of each SGLang server; None for native engines. `source`: where tensors are
        copied from.
        """
        self._processes = processes
        self._folder = folder
        self._buckets = buckets
        self._model_bytes = sum(bucket.size for bucket in buckets)
        self._version: int | None = None
        """The version that `_held` has; None: none."""
        self._held = [torch.empty(bucket.size, dtype=torch.uint8) for bucket in buckets]
        """The bytes of each bucket."""
        self._buffer = torch.empty(max(bucket.size for bucket in buckets), dtype=torch.uint8)
        self._page_lock = lock_where_possible(self._buffer, source)
        self._full_version = -1
        self._deltas: list[WeightDelta] = []
        """What changed after `_full_version`, and before it since the last version."""
        self._stale: list[Path] = []
        """Folders that engines may read until the next update."""
        shutil.rmtree(folder, ignore_errors=True)  # left by a trainer that was killed

    def write(self, weights: WeightSet, version: int) -> FolderWeights:
        """Writes one version. Raises OSError if the disk is full, ValueError for unexpected tensors.

        After an error the next version is written in full.
        """
        previous, self._version = self._version, None
        _remove(self._stale)
        self._stale = []
        if previous is None or previous == version:
            size = self._write_full(self._filled(weights), version)
        else:
            size = self._write_delta(weights, previous, version)
        self._version = version
        return FolderWeights(
            str(self._full_path),
            size,
            version,
            checksums=weights.checksums(),
            full_version=self._full_version,
            deltas=tuple(self._deltas),
            processes=self._processes,
        )

    def close(self) -> None:
        """Removes the folders of all versions."""
        if self._page_lock is not None:
            self._page_lock.release()
            self._page_lock = None
        self._held = []
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _full_path(self) -> Path:
        return self._folder / str(self._full_version)

    def _filled(self, weights: WeightSet) -> Iterable[tuple[Bucket, torch.Tensor]]:
        """Yields each bucket with its bytes, which are held when the next is asked for."""
        for bucket, held in zip(self._buckets, self._held, strict=True):
            weights.fill(self._buffer, bucket)
            held.copy_(self._buffer[: bucket.size])
            yield bucket, held

    def _write_full(self, buckets: Iterable[tuple[Bucket, torch.Tensor]], version: int) -> int:
        """Makes the folder of a full version, from which deltas count; returns its bytes.

        The folder gets its name when it is complete: an engine never reads one that is being written.
        """
        stale = [Path(delta.folder) for delta in self._deltas]
        partial = _new_folder(self._folder / f"{version}.part")
        for number, (bucket, held) in enumerate(buckets, 1):
            file = partial / f"model-{number:05d}-of-{len(self._buckets):05d}.safetensors"
            save_file(tensors_in(held, bucket.slots), file, {"format": "pt"})
        if self._full_version not in (-1, version):
            stale.append(self._full_path)
        self._full_version, self._deltas, self._stale = version, [], stale
        shutil.rmtree(self._full_path, ignore_errors=True)
        partial.rename(self._full_path)
        return self._model_bytes

    def _write_delta(self, weights: WeightSet, since: int, version: int) -> int:
        """Writes what changed, and a full version if the deltas got too large; returns the bytes of both."""
        folder, files = _new_folder(self._folder / f"{version}-delta"), []
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            for number, (bucket, held) in enumerate(zip(self._buckets, self._held, strict=True), 1):
                weights.fill(self._buffer, bucket)
                changed = _changes(bucket, held, self._buffer, threads)
                if changed:
                    files.append(folder / f"delta-{number:05d}.safetensors")
                    save_file(changed, files[-1], _metadata(bucket, changed))
                held.copy_(self._buffer[: bucket.size])
        size = sum(file.stat().st_size for file in files)
        delta = WeightDelta(str(folder), since, version, tuple(map(str, files)), size)
        if sum(delta.size for delta in self._deltas) + size < self._model_bytes:
            self._deltas.append(delta)
            return size
        size += self._write_full(zip(self._buckets, self._held, strict=True), version)
        self._deltas = [delta]
        return size


def _changes(
    bucket: Bucket, old: torch.Tensor, new: torch.Tensor, threads: ThreadPoolExecutor
) -> dict[str, torch.Tensor]:
    """Returns what a delta holds for the tensors of a bucket."""
    old_tensors, new_tensors = (tensors_in(buffer, bucket.slots) for buffer in (old, new))
    pieces = threads.map(encode, old_tensors, old_tensors.values(), new_tensors.values())
    return {name: piece for of_tensor in pieces for name, piece in of_tensor.items()}


def _metadata(bucket: Bucket, pieces: Iterable[str]) -> dict[str, str]:
    changed = {name.partition("|")[0] for name in pieces}
    tensors = {slot.name: (slot.dtype, slot.shape) for slot in bucket.slots if slot.name in changed}
    return {"changed": json.dumps(tensors)}


def _new_folder(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
