"""Checks from the beginning of a file that it can hold JSON lines, before any row is read."""

from pathlib import Path

from rlrun.models.json_files import parse_json

_KINDS = (
    (b"\x1f\x8b", "is compressed by gzip", "gunzip it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd", "decompress it first, with zstd -d"),
    (b"PK\x03\x04", "is a zip archive", "unpack it first"),
    (b"PAR1", "is a Parquet file", 'use type = "parquet"'),
    (b"\xff\xfe", "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
)
_BEGINNING = 1 << 16
_SHOWN = 40
"""Number of characters of the first line that an error message quotes."""


def check_line_file(path: Path) -> None:
    """Raises ValueError, with the cure, for a file that does not hold one JSON object in each line."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name one file of JSON lines in it")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    for magic, kind, cure in _KINDS:
        if beginning.startswith(magic):
            raise ValueError(f"{path} {kind}, and rlrun reads JSON lines: {cure}")
    line = next((line for line in beginning.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()), b"")
    if not line and len(beginning) < _BEGINNING:
        raise ValueError(f"{path} has no rows")
    if line.strip().startswith(b"[") or line.strip() == b"{":
        inner = ".[]" if line.strip().startswith(b"[") else "."
        raise ValueError(
            f"{path} is one JSON value over several lines, and rlrun reads one object in each line: "
            f"jq -c '{inner}' {path.name} > rows.jsonl"
        )
    if line and not line.strip().startswith(b"{") and not _is_json(line):
        raise ValueError(
            f"{path} is not a file of JSON lines, it begins with {_quoted(line)}: write each row as an "
            'object in a line of its own, {"prompt": …, "label": …}'
        )


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _quoted(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
