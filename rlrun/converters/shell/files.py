"""Finds the files that a script names, which may lie elsewhere here than where the script runs."""

from collections.abc import Iterator
from pathlib import Path

_OF_THE_KERNEL = ("/proc", "/sys", "/dev")
_LARGEST = 1 << 20
"""Bytes of a file that is read."""


def places(written: str, folder: Path, own: Path) -> Iterator[Path]:
    """Files that a path may mean: there, or with its last parts above the script's own folder."""
    known = written.rpartition("}")[2].rpartition(")")[2]
    candidates = [folder / written, own / written] if known == written else []
    parts = [part for part in Path(known.lstrip("/")).parts if part != ".."]
    for start in range(max(1, len(parts) - 1)):
        candidates += (
            [parent.joinpath(*parts[start:]) for parent in (own, *own.parents)] if len(parts) > 1 else []
        )
    yield from (path for path in candidates if _is_file(path))


def _is_file(path: Path) -> bool:
    """Whether there is a file of text, and not a device or what the kernel tells of processes."""
    try:
        real = path.resolve()
        kernel = any(real.is_relative_to(root) for root in _OF_THE_KERNEL)
        return not kernel and real.is_file() and real.stat().st_size <= _LARGEST
    except (OSError, ValueError):  # a name that no file can have
        return False
