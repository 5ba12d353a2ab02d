"""Writes lines of text to a zstd file, and reads them back one line at a time.

zstd compresses zeros by a factor of more than ten thousand, so a small file that is damaged or malicious
could fill the memory. The decompressed size is therefore bounded by the file's size; samples compress by a
factor of 3 to 30.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from rlrun.models.foreign_files import open_regular
from rlrun.models.json_files import parse_json
from rlrun.specs.paths import display_path

_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 18
"""A frame's header is at most this long (RFC 8878)."""
_MAX_RATIO = 200
"""The largest compression ratio of a file with more than `_ALWAYS_READ` decompressed bytes."""
_ALWAYS_READ = 256 << 20
_MAX_LINE_LENGTH = 256 << 20
"""In bytes. A sample of 131,000 tokens with the experts of 60 layers has 170 MB."""


class UnreadableFile(ValueError):
    """Raised for a file that `write_lines` did not write; the message names the file and the broken line."""


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes lines and a checksum that readers verify."""
    text = "".join(f"{line}\n" for line in lines)
    data = text.encode(errors="backslashreplace")  # half of a surrogate pair becomes its escape in JSON
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(data))


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the JSON object of each line. Raises UnreadableFile if the file is broken."""
    for number, line in read_lines(path):
        yield parse_record(path, number, line)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the number of each line, counted from 1, and its bytes.

    Raises UnreadableFile as soon as the file turns out to be broken.
    """
    try:
        yield from enumerate(_lines(path), start=1)
    except (OSError, zstandard.ZstdError) as error:
        raise UnreadableFile(f"{display_path(path)} cannot be read: {error}") from None


def parse_record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Returns the JSON object of a line. Raises UnreadableFile, naming the line, if it does not hold one."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UnreadableFile(f"{display_path(path)}:{number} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise UnreadableFile(f"{display_path(path)}:{number} is not a sample: it is not a JSON object")
    return record


def _lines(path: Path) -> Iterator[bytes]:
    pending = bytearray()
    for chunk in _chunks(path):
        start = len(pending)
        pending += chunk
        if b"\n" not in chunk:
            if len(pending) > _MAX_LINE_LENGTH:
                raise UnreadableFile(
                    f"{display_path(path)} has a line of more than {_MAX_LINE_LENGTH >> 20} MiB"
                )
            continue
        end = pending.rindex(b"\n", start) + 1
        yield from bytes(pending[:end]).splitlines()
        del pending[:end]
    if pending:
        yield bytes(pending)


def _chunks(path: Path) -> Iterator[bytes]:
    """Yields the decompressed bytes. Raises UnreadableFile for too many, or fewer than were written."""
    num_read = 0
    with open_regular(path) as file:
        limit = max(_ALWAYS_READ, _MAX_RATIO * os.fstat(file.fileno()).st_size)
        expected = zstandard.frame_content_size(file.read(_HEADER_BYTES))
        file.seek(0)
        with zstandard.ZstdDecompressor().stream_reader(file) as reader:
            while max(num_read, expected) <= limit and (chunk := reader.read(_CHUNK_BYTES)):
                num_read += len(chunk)
                yield chunk
    if max(num_read, expected) > limit:
        raise UnreadableFile(
            f"{display_path(path)} would decompress to more than {limit >> 20} MiB, {_MAX_RATIO} times its "
            "size: samples do not compress that well, so rlrun did not write it"
        )
    if expected >= 0 and num_read != expected:
        raise UnreadableFile(f"{display_path(path)} is cut short: {num_read} of {expected} bytes can be read")
