"""Recognises files that are not text, by their first bytes."""

from pathlib import Path

BEGINNING = 1 << 16
"""Number of bytes that are looked at."""
_FORMATS = (
    (b"\x1f\x8b", "is compressed by gzip", "gunzip it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd", "decompress it first, with zstd -d"),
    (b"PK\x03\x04", "is a zip archive", "unpack it first"),
    (b"PAR1", "is a Parquet file", 'use type = "parquet"'),
    (b"\xff\xfe", "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
)


def beginning_of_text(path: Path, expected: str) -> bytes:
    """Returns the first bytes of a text file. Errors say that rlrun reads the `expected` format.

    Raises ValueError, with the cure, for a folder, a missing file, or a file that is not UTF-8 text.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name one file of {expected} in it")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    with path.open("rb") as file:
        beginning = file.read(BEGINNING)
    for magic, kind, cure in _FORMATS:
        if beginning.startswith(magic):
            raise ValueError(f"{path} {kind}, and rlrun reads {expected}: {cure}")
    return beginning
