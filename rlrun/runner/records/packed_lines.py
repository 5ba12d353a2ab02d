"""Lines of text in a zstd file, written at once and read back a line at a time.

zstd shrinks zeros by a factor of more than ten thousand, so a small file that was damaged or made up could
fill the memory. What is read is bounded by the file's own size: samples shrink by a factor of 3 to 30.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from rlrun.specs.paths import display_path

_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 18
"""A frame's header is at most this long (RFC 8878)."""
_MOST_RATIO = 200
"""Decompressed bytes for each byte of a file that is larger than `_ALWAYS_READ` decompressed."""
_ALWAYS_READ = 256 << 20
_LONGEST_LINE = 256 << 20
"""Bytes. A sample of 131,000 tokens with the experts of 60 layers has 170 MB."""


class UnreadableFile(ValueError):
    """A file is not what `write_lines` made of it; the message names the file, and the line if it is one."""


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes lines, with a checksum that readers check."""
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(text.encode()))


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the JSON object of each line. UnreadableFile where something is broken."""
    try:
        for number, line in enumerate(_lines(path), start=1):
            yield _record(path, number, line)
    except (OSError, zstandard.ZstdError) as error:
        raise UnreadableFile(f"{display_path(path)} cannot be read: {error}") from None


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{display_path(path)}:{number} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise UnreadableFile(f"{display_path(path)}:{number} holds no sample")
    return record


def _lines(path: Path) -> Iterator[bytes]:
    pending = bytearray()
    for chunk in _chunks(path):
        start = len(pending)
        pending += chunk
        if b"\n" not in chunk:
            if len(pending) > _LONGEST_LINE:
                raise UnreadableFile(
                    f"{display_path(path)} has a line of more than {_LONGEST_LINE >> 20} MiB"
                )
            continue
        end = pending.rindex(b"\n", start) + 1
        yield from bytes(pending[:end]).splitlines()
        del pending[:end]
    if pending:
        yield bytes(pending)


def _chunks(path: Path) -> Iterator[bytes]:
    """Yields the decompressed bytes; UnreadableFile where they are too many, or fewer than were written."""
    limit = max(_ALWAYS_READ, _MOST_RATIO * path.stat().st_size)
    done = 0
    with path.open("rb") as file:
        expected = zstandard.frame_content_size(file.read(_HEADER_BYTES))
        file.seek(0)
        with zstandard.ZstdDecompressor().stream_reader(file) as reader:
            while max(done, expected) <= limit and (chunk := reader.read(_CHUNK_BYTES)):
                done += len(chunk)
                yield chunk
    if max(done, expected) > limit:
        raise UnreadableFile(
            f"{display_path(path)} would become more than {limit >> 20} MiB, {_MOST_RATIO} times its "
            "size: samples do not shrink that far, so it was not written by rlrun"
        )
    if expected >= 0 and done != expected:
        raise UnreadableFile(f"{display_path(path)} is cut short: {done} of {expected} bytes can be read")
