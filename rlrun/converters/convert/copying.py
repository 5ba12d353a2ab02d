"""Fills the output files: several threads, a bounded number of bytes in memory.

    OutputFile ─▶ name.part, a tensor at a time ─▶ fsync ─▶ name

A tensor that is stored as it shall be written is copied within the kernel and never seen by this process; any
other is made block by block.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from rlrun.converters.folders.output_files import OutputFile, OutputTensor
from rlrun.converters.tensors.blocks import as_bytes, blocks, row_bytes
from rlrun.converters.tensors.content import Content, Plain, Span
from rlrun.converters.tensors.stored import Files

PART = ".part"
_COPY_BYTES = 64 << 20
"""Copied between two looks at the clock."""
_BLOCK_BYTES = 4 << 20
"""Of output, made at once where memory allows. What is computed on the way stays in the processor's cache and
the allocator keeps its pages: quantising is three times as fast as with 16 MiB.
"""
_WORKING_COPIES = 6
"""A block is in memory this many times at worst: read, widened, scaled, rounded, narrowed."""
_BASE_BYTES = 1 << 30
"""What the process takes with nothing to do: torch."""

Advance = Callable[[int], None]
"""Called with bytes done, from any thread."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """How much of the machine to use."""

    threads: int
    memory: int
    """Bytes of memory that the whole process may take."""

    def block_bytes(self) -> int:
        """Bytes of output that one thread may make at once."""
        room = (self.memory - _BASE_BYTES) // (self.threads * _WORKING_COPIES)
        return min(_BLOCK_BYTES, max(1 << 20, room))


def check_limits(effort: ResourceLimits, files: Sequence[OutputFile], held: int) -> None:
    """ValueError where the memory is too little for any way of doing it; each thread holds `held` bytes
    besides.
    """
    needs = {tensor.name: _least_bytes(tensor.content) for file in files for tensor in file.tensors}
    name = max(needs, key=lambda name: needs[name], default="")
    least = _BASE_BYTES + (_WORKING_COPIES * needs.get(name, 0) + held) * effort.threads
    if effort.memory < least:
        raise ValueError(
            f"--memory must be at least {least / 2**30:.1f}GiB with {effort.threads} threads, because "
            f"{name or 'torch'} cannot be made in smaller parts; give more, or fewer --threads"
        )


def write_files(
    folder: Path, files: Sequence[OutputFile], sources: Files, effort: ResourceLimits, advance: Advance
) -> None:
    """Write `files` into a folder; those that it has already are left as they are.

    Raises the first error of any thread, an OSError (a full disk) as such; then no other file is begun.
    """
    writer = _Writer(folder, sources, effort, advance)
    todo = [file for file in files if not (folder / file.name).exists()]
    with ThreadPoolExecutor(effort.threads) as pool:
        try:
            tasks = [pool.submit(writer.run, work) for work in _in_turn(todo, effort.threads)]
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            writer.stopped = True
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Work:
    """A tensor of a file; None for a file without any."""

    file: OutputFile
    tensor: OutputTensor | None


class _Writer:
    """What the threads share."""

    def __init__(self, folder: Path, sources: Files, effort: ResourceLimits, advance: Advance) -> None:
        self.stopped = False
        self._folder = folder
        self._block_bytes = effort.block_bytes()
        self._advance = advance
        self._sources = sources
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self, work: _Work) -> None:
        """Write one tensor; whoever writes a file's last one completes the file."""
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
                raise ValueError(f"{span.path} became shorter while it was read")
            done += sent
            self._advance(sent)


def _least_bytes(content: Content) -> int:
    """Bytes that must be made at once."""
    if isinstance(content, Plain) and content.spans() is not None:
        return 0
    return min(content.step * row_bytes(content), content.tensor.nbytes)


def _in_turn(files: Sequence[OutputFile], count: int) -> Iterator[_Work]:
    """The tensors of `count` files in turn, so that threads rarely write to the same one."""
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
