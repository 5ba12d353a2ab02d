"""The folder of rlrun's cache on disk, whose contents are trusted: compiled operators, packed functions.

    ~/.cache/rlrun (or RLRUN_CACHE), created with mode 0700
        operators/   libraries that are loaded into processes        functions/   modules of notebooks
        sglang-….json, sglang-router-….json   names of arguments          view/        indexes of samples
        inductor/    what torch.compile built                  objects/     copies from object stores

Other users, and other members of a group, must not be able to write any of it, nor to replace a folder above.
"""

import os
import stat
from pathlib import Path

from rlrun.models.ownership import others_may_replace_in


def cache_folder() -> Path:
    """Returns `~/.cache/rlrun`, or the folder that `RLRUN_CACHE` names. It may not exist yet."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("RLRUN_CACHE") or Path(caches) / "rlrun")


def private_folder(name: str = "") -> Path:
    """Returns a folder of the cache, which is created if needed.

    Raises OSError, with what to do, if others could write to it.
    """
    folder = cache_folder() / name
    for path in reversed([folder, *_up_to_cache(folder)]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        check_private(path)
    for path in dict.fromkeys((*cache_folder().absolute().parents, *cache_folder().resolve().parents)):
        _check_above(path)
    return folder


def check_private(path: Path) -> None:
    """Raises OSError, with what to do, if somebody else could have written a file or folder of the cache."""
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise OSError(f"{path} belongs to another user: set RLRUN_CACHE to a folder of yours")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(
            f"others may write {path}: if you trust what is in it, chmod go-w {path}; else remove it, or set "
            "RLRUN_CACHE to another folder"
        )


def _up_to_cache(folder: Path) -> list[Path]:
    """Returns the folders from above `folder` up to the cache's, which are rlrun's own."""
    return [path for path in folder.parents if path.is_relative_to(cache_folder())]


def _check_above(path: Path) -> None:
    """Raises OSError if somebody else could replace the cache, because they may rename entries of a folder.

    A sticky folder such as /tmp protects its entries, and many systems let a user's own group write.
    """
    if others_may_replace_in(path):
        raise OSError(
            f"others may replace the cache {cache_folder()}, because they may write {path}: set RLRUN_CACHE "
            "to a folder in your home"
        )
