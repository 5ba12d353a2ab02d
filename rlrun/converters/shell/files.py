"""Finds the files that a script names; their folders may differ between this host and the script's."""

from collections.abc import Iterator
from pathlib import Path

_OF_THE_KERNEL = ("/proc", "/sys", "/dev")
_LARGEST = 1 << 20
"""The largest file that is read, in bytes."""


def places(written: str, folder: Path, own: Path) -> Iterator[Path]:
    """Yields existing files that a path may mean, the likeliest first.

    Those are the path itself, and its last parts relative to the script's folder or a folder above it.
    """
    known = written.rpartition("}")[2].rpartition(")")[2]
    candidates = [folder / written, own / written] if known == written else []
    parts = [part for part in Path(known.lstrip("/")).parts if part != ".."]
    for start in range(max(1, len(parts) - 1)):
        candidates += (
            [parent.joinpath(*parts[start:]) for parent in (own, *own.parents)] if len(parts) > 1 else []
        )
    yield from (path for path in candidates if _is_file(path))


def _is_file(path: Path) -> bool:
    """Returns whether a path is a regular file of moderate size, outside of the kernel's folders."""
    try:
        real = path.resolve()
        kernel = any(real.is_relative_to(root) for root in _OF_THE_KERNEL)
        return not kernel and real.is_file() and real.stat().st_size <= _LARGEST
    except (OSError, ValueError):  # a name that no file can have
        return False
