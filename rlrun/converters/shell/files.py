"""Finds the files that a script names. This host may have them in other folders than the script's host."""

from collections.abc import Iterator
from pathlib import Path

_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
_MAX_BYTES = 1 << 20
"""Maximum size of a file that is read."""


def candidate_files(written: str, folder: Path, script_folder: Path) -> Iterator[Path]:
    """Yields existing files that a path in a script may refer to, the likeliest first.

    Tries the path itself, relative to `folder` (the working folder) and to the script's folder, and then the
    last parts of the path in the script's folder and in each folder above it.
    """
    resolved = written.rpartition("}")[2].rpartition(")")[2]
    candidates = [folder / written, script_folder / written] if resolved == written else []
    parts = [part for part in Path(resolved.lstrip("/")).parts if part != ".."]
    for start in range(max(1, len(parts) - 1)):
        candidates += (
            [parent.joinpath(*parts[start:]) for parent in (script_folder, *script_folder.parents)]
            if len(parts) > 1
            else []
        )
    yield from (path for path in candidates if _is_file(path))


def _is_file(path: Path) -> bool:
    """Returns whether a path is a regular file of moderate size, outside of the kernel's folders."""
    try:
        real = path.resolve()
        kernel = any(real.is_relative_to(root) for root in _KERNEL_FOLDERS)
        return not kernel and real.is_file() and real.stat().st_size <= _MAX_BYTES
    except (OSError, ValueError):  # a name that no file can have
        return False
