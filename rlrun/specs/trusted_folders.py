"""The folders whose plugin files may run without `--allow-local-plugins`, because the user said so once.

    rlrun plugins trust FOLDER ──► ~/.config/rlrun/trusted-folders.json

A folder is only trusted for specs in it that name files in it. An edited file needs no new consent, so nobody
else may be able to write the folder, and no link may lead into it: trust follows the real path.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from rlrun.models.json_files import read_json
from rlrun.models.ownership import is_own, others_may_replace_in, others_may_write

_KEY = "folders"


def trust_file() -> Path:
    """Returns the file with the trusted folders, `~/.config/rlrun/trusted-folders.json`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "rlrun/trusted-folders.json"


def trusted_folders() -> list[Path]:
    """Returns the folders that the user trusts; none if somebody else could have written the list."""
    file = trust_file()
    try:
        if any(not is_own(path) or others_may_write(path) for path in (file, file.parent)):
            return []
        if any(map(others_may_replace_in, file.parent.parents)):
            return []
        folders = read_json(file)[_KEY]
        return [Path(folder) for folder in folders]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def store_trusted_folders(folders: list[Path]) -> None:
    """Replaces the list."""
    file = trust_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps({_KEY: sorted(map(str, folders))}, indent=2) + "\n", "utf-8")
    new.chmod(0o600)
    new.replace(file)


def is_trusted(file: Path, folder: Path) -> bool:
    """Returns whether the user trusts the code in a file for a spec in this folder."""
    return any(
        _has_no_link(folder) and folder.resolve().is_relative_to(trusted) and danger_of(file, trusted) is None
        for trusted in trusted_folders()
    )


def danger_of(file: Path, trusted: Path) -> str | None:
    """Returns why trust in a folder does not extend to a file, with the cure; None if it does."""
    real = file.resolve()
    if not _has_no_link(file):
        return f"{file} is named through a link: name it by its real path, {real}"
    if not real.is_relative_to(trusted):
        return f"{file} is not in {trusted}"
    try:
        return next(_dangers(real, trusted), None)
    except OSError as error:
        return f"{file} cannot be examined: {error.strerror}"


def _dangers(file: Path, trusted: Path) -> Iterator[str]:
    """Yields why somebody else could change the file, or a folder on the way to it."""
    for path in (file, *file.parents):
        if path.is_relative_to(trusted):
            if not is_own(path):
                yield f"{path} belongs to another user"
            elif others_may_write(path):
                yield f"others may write {path}: chmod go-w {path}"
        elif others_may_replace_in(path):
            yield f"others may replace {trusted}, because they may write {path}"


def _has_no_link(path: Path) -> bool:
    return str(path.resolve()) == os.path.normpath(path.absolute())
