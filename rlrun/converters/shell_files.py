"""Finds the files that a script names, which may lie elsewhere here than where the script runs."""

from collections.abc import Iterator
from pathlib import Path


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
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
