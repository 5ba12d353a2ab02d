"""Writes the output files with several threads, within a memory limit.

    OutputFile ─▶ name.part, a tensor at a time ─▶ fsync ─▶ name

A tensor whose bytes do not change is copied by the kernel (sendfile). Any other tensor is computed in blocks
of rows.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from rlrun.converters.folders.output_files import OutputFile, OutputTensor
from rlrun.converters.tensors.content import Content, Plain, Span, as_bytes, blocks, row_bytes
from rlrun.converters.tensors.stored import Files

PART = ".part"
_COPY_BYTES = 64 << 20
"""Bytes per sendfile call, after which progress is reported."""
_BLOCK_BYTES = 4 << 20
"""Bytes of output per block, where memory allows. Intermediate values then stay in the processor's cache, and
the allocator reuses its pages: quantising is three times as fast as with 16 MiB.
"""
_WORKING_COPIES = 6
"""Maximum number of copies of a block in memory at the same time: read, widened, scaled, rounded,
narrowed."""
_BASE_BYTES = 1 << 30
"""Memory of the process without any work, most of it torch."""

Advance = Callable[[int], None]
"""Called from any thread with the number of bytes that were just written or compared."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of the threads and the memory of a conversion."""

    threads: int
    memory: int
    """Bytes of memory that the whole process may use."""

    def block_bytes(self) -> int:
        """Returns the bytes of output that one thread may compute at a time."""
        available = (self.memory - _BASE_BYTES) // (self.threads * _WORKING_COPIES)
        return min(_BLOCK_BYTES, max(1 << 20, available))


def check_limits(limits: ResourceLimits, files: Sequence[OutputFile], extra_bytes: int) -> None:
    """Raises ValueError if the memory is not even enough for the smallest possible blocks.

    `extra_bytes`: bytes that each thread needs in addition.
    """
    needs = {tensor.name: _least_bytes(tensor.content) for file in files for tensor in file.tensors}
    name = max(needs, key=lambda name: needs[name], default="")
    least = _BASE_BYTES + (_WORKING_COPIES * needs.get(name, 0) + extra_bytes) * limits.threads
    if limits.memory < least:
        raise ValueError(
            f"--memory must be at least {least / 2**30:.1f}GiB with {limits.threads} threads, because "
            f"{name or 'torch'} cannot be split into smaller parts; raise it, or lower --threads"
        )


def write_files(
    folder: Path, files: Sequence[OutputFile], sources: Files, limits: ResourceLimits, advance: Advance
) -> None:
    """Writes `files` into a folder, except those that are already there.

    Raises the first error of any thread, for instance OSError for a full disk. No further file is started
    then.
    """
    writer = _Writer(folder, sources, limits, advance)
    missing = [file for file in files if not (folder / file.name).exists()]
    with ThreadPoolExecutor(limits.threads) as pool:
        try:
            tasks = [pool.submit(writer.run, work) for work in _interleave(missing, limits.threads)]
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            writer.stopped = True
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Work:
    """One tensor of a file; None for a file without tensors."""

    file: OutputFile
    tensor: OutputTensor | None


class _Writer:
    """Writes tensors to files; shared by all threads."""

    def __init__(self, folder: Path, sources: Files, limits: ResourceLimits, advance: Advance) -> None:
        self.stopped = False
        self._folder = folder
        self._block_bytes = limits.block_bytes()
        self._advance = advance
        self._sources = sources
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self, work: _Work) -> None:
        """Writes one tensor; the thread that writes the last tensor of a file completes the file."""
        if self.stopped:
            return
        path = self._folder / (work.file.name + PART)
        try:
            self._fill(path, work)
        except OSError as error:
            if error.filename is None:
                error.filename = str(self._folder / work.file.name)
            raise
        if self.stopped:
            return
        with self._lock:
            self._done[work.file.name] = self._done.get(work.file.name, 0) + 1
            last = self._done[work.file.name] >= len(work.file.tensors)
        if last:
            _complete(path, work.file)

    def _fill(self, path: Path, work: _Work) -> None:
        path.parent.mkdir(exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(target, work.file.size)
            if work.tensor is not None:
                self._write(target, work.tensor)
        finally:
            os.close(target)

    def _write(self, target: int, tensor: OutputTensor) -> None:
        content = tensor.content
        spans = content.spans() if isinstance(content, Plain) else None
        if spans is not None:
            for span in spans:
                self._copy(target, tensor.position, span)
            return
        for first, last in blocks(content, self._block_bytes):
            if self.stopped:
                return
            data = memoryview(as_bytes(content.rows(self._sources, first, last)).numpy())
            start = tensor.position + first * row_bytes(content)
            while data:
                written = os.pwrite(target, data, start)
                data, start = data[written:], start + written
                self._advance(written)

    def _copy(self, target: int, position: int, span: Span) -> None:
        os.lseek(target, position + span.target, os.SEEK_SET)
        source = self._sources.open(span.path)
        done = 0
        while done < span.nbytes and not self.stopped:
            count = min(_COPY_BYTES, span.nbytes - done)
            sent = os.sendfile(target, source, span.position + done, count)
            if not sent:
                raise ValueError(
                    f"{span.path} was truncated while it was read; convert it again when it is complete"
                )
            done += sent
            self._advance(sent)


def _least_bytes(content: Content) -> int:
    """Returns the size of the smallest block of a content, in bytes."""
    if isinstance(content, Plain) and content.spans() is not None:
        return 0
    return min(content.step * row_bytes(content), content.tensor.nbytes)


def _interleave(files: Sequence[OutputFile], count: int) -> Iterator[_Work]:
    """Yields tensors of `count` files alternately, so that threads rarely write to the same file."""
    for start in range(0, len(files), count):
        group = files[start : start + count]
        lanes = [[_Work(file, tensor) for tensor in file.tensors] or [_Work(file, None)] for file in group]
        yield from (work for work in chain.from_iterable(zip_longest(*lanes)) if work is not None)


def _complete(path: Path, file: OutputFile) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for position, data in file.fixed:
            os.pwrite(descriptor, data, position)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.rename(path.with_name(path.name.removesuffix(PART)))
