"""Hands weights to native engines of one host through files in /dev/shm, which the engines use in place.

    trainer rank 0                               engine
    write(tensors, v)      fills segment 0
                           ──manifest v──▶       attach: maps segment 0, takes a shared lock, computes with it
    write(tensors, v + 1)  fills segment 1
                           ──manifest v + 1──▶   attach: maps segment 1, then releases segment 0
    write(tensors, v + 2)  fills segment 0 …

The two segments take turns. The writer needs the file's exclusive lock (flock), and an engine holds a shared
lock while it computes with the segment, so an engine never computes with weights that are being written. The
kernel releases the locks of a process that dies. A writer that waits too long for a lock raises TimeoutError.
"""

import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence

import torch

from rlrun.runner.contracts.weight_updates import TensorSlot
from rlrun.runner.host.segment_files import (
    FOLDER,
    ExclusiveLock,
    is_segment_name,
    new_segment_name,
    remove_stale_segments,
)
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from rlrun.runner.weights.page_locking import HOST, PageLock, lock_where_possible
from rlrun.runner.weights.tensor_slots import (
    SegmentError,
    check_slots,
    copy_all,
    end_of,
    layout,
    tensors_in,
)

_HEADER = struct.Struct("<8sqq")
"""Magic number, version (-1 while the segment is being written), size of the segment."""
_MAGIC = b"RLRUNWTS"
_HEADER_BYTES = 64


class SharedWeights:
    """The writer's side: two segments, created at the first write and removed by `close`."""

    def __init__(
        self,
        job: str,
        shapes: Mapping[str, Sequence[int]],
        dtype: str,
        *,
        wait: float = 60.0,
        device: torch.device = HOST,
        segments: int = 2,
    ) -> None:
        """Removes segments left behind by killed writers.

        `job`: part of the segments' names. `shapes`: shape of every tensor, by Hugging Face name. `dtype`:
        that of the engines, to which tensors are converted. `wait`: seconds to wait for a segment's lock.
        `device`: where tensors are copied from. `segments`: how many take turns; 1 for weights that are
        written once.
        """
        self._job = job
        self._slots = layout(shapes, dtype, start=_HEADER_BYTES)
        self._size = end_of(self._slots)
        self._wait = wait
        self._device = device
        self._count = segments
        self._turn = 0
        self._segments: list[_Segment] = []
        remove_stale_segments()

    def write(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> WeightManifest:
        """Copies a complete set of weights into the segment whose turn it is.

        Tensors may be produced one at a time, on any device. Raises SegmentError when a tensor is unknown,
        missing or of another shape, and TimeoutError when an engine holds this segment for longer than `wait`
        seconds.
        """
        while len(self._segments) < self._count:
            segment = _Segment.create(new_segment_name(self._job), self._size)
            segment.page_lock = lock_where_possible(segment.memory, self._device)
            self._segments.append(segment)
        segment = self._segments[self._turn]
        with segment.exclusive(self._wait):
            segment.write_header(-1)  # a writer that is killed in the middle leaves no valid version behind
            copy_all(tensors_in(segment.memory, self._slots), tensors)
            segment.write_header(version)
        self._turn = (self._turn + 1) % self._count
        return WeightManifest(segment.name, self._size, version, self._slots)

    def close(self) -> None:
        """Removes the segments' files. An engine that has mapped one keeps the memory until it is done."""
        for segment in self._segments:
            segment.unlink()
        self._segments = []


class AttachedWeights:
    """The reader's side: `tensors` are views of the segment, valid and unchanging until `close`."""

    def __init__(self, segment: "_Segment", slots: Sequence[TensorSlot]) -> None:
        self._segment = segment
        self.slots = slots
        self.tensors = tensors_in(segment.memory, slots)

    @property
    def segment(self) -> str:
        """Name of the segment; the job writes two segments in turns."""
        return self._segment.name

    @property
    def memory(self) -> torch.Tensor:
        """The whole mapped segment as bytes. It stays mapped as long as this tensor exists."""
        return self._segment.memory

    def close(self) -> None:
        """Releases the segment to the writer. Call it when nothing computes with `tensors` any more."""
        self.tensors = {}
        self._segment.release()


def attach(manifest: WeightManifest) -> AttachedWeights:
    """Maps the segment of a manifest and locks it. SegmentError when it is gone or holds something else."""
    segment = _Segment.open(manifest.segment, manifest.size)
    try:
        version = segment.read_header()
        if version != manifest.version:
            raise SegmentError(f"segment {manifest.segment} holds weights {version}, not {manifest.version}")
        check_slots(manifest.tensors, _HEADER_BYTES, manifest.size, manifest.segment)
    except BaseException:
        segment.release()
        raise
    return AttachedWeights(segment, manifest.tensors)


class _Segment:
    """A mapped file with a header; its lock is held as long as its descriptor is open."""

    def __init__(self, name: str, descriptor: int, size: int) -> None:
        self.name = name
        self._descriptor = descriptor
        self._size = size
        # A reader maps it writable too, since torch.frombuffer warns about read-only memory.
        self._map = mmap.mmap(descriptor, size)
        self.memory = torch.frombuffer(self._map, dtype=torch.uint8)
        self.page_lock: PageLock | None = None

    @classmethod
    def create(cls, name: str, size: int) -> "_Segment":
        path = FOLDER / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Reserves the memory now: a full /dev/shm is an error here, not a SIGBUS in the middle of a copy.
            os.posix_fallocate(descriptor, 0, size)
            return cls(name, descriptor, size)
        except OSError as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise SegmentError(
                f"{path}: no room for {size / 1e6:.1f} MB of shared weights ({error})"
            ) from error

    @classmethod
    def open(cls, name: str, size: int) -> "_Segment":
        if not is_segment_name(name):
            raise SegmentError(f"{name!r} is not a segment's name")
        try:
            descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            raise SegmentError(f"segment {name} cannot be opened: {error.strerror}") from error
        try:
            _check_owner(name, os.fstat(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_size < size:
                raise SegmentError(f"segment {name} is shorter than the {size} bytes of its manifest")
            return cls(name, descriptor, size)
        except BlockingIOError as error:
            os.close(descriptor)
            raise SegmentError(f"segment {name} is being written") from error
        except BaseException:
            os.close(descriptor)
            raise

    def exclusive(self, wait: float) -> "ExclusiveLock":
        return ExclusiveLock(self._descriptor, self.name, wait)

    def write_header(self, version: int) -> None:
        _HEADER.pack_into(self._map, 0, _MAGIC, version, self._size)

    def read_header(self) -> int:
        magic, version, size = _HEADER.unpack_from(self._map, 0)
        if magic != _MAGIC or size != self._size:
            raise SegmentError(f"segment {self.name} does not hold weights of {self._size} bytes")
        return int(version)

    def release(self) -> None:
        """Releases the lock. The memory itself is freed with the last view of it."""
        if self._descriptor >= 0:
            # mmap keeps a duplicate of the descriptor, so closing it would not release the lock.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def unlink(self) -> None:
        if self.page_lock is not None:
            self.page_lock.release()
        (FOLDER / self.name).unlink(missing_ok=True)
        self.release()


def _check_owner(name: str, status: os.stat_result) -> None:
    """Raises SegmentError for a file that another user owns, or may read or write.

    Its content becomes the model's weights, so another user could change the model or copy it.
    """
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise SegmentError(
            f"segment {name} must be a regular file that only this user owns, reads and writes"
        )
