"""Whether rlrun may run code that a spec names by its path: plugins in a file, interpreters of engines.

A spec may come from elsewhere, so that reading it must not run anything beside it. `--allow-local-plugins`
allows it. So does trust in the folder of a spec and of the plugin file that it names (trusted_folders.py).
`rlrun launch` runs the interpreters of engines in any case.
"""

import os
import sys
from pathlib import Path

from rlrun.specs.trusted_folders import danger_of, is_trusted, trusted_folders

ALLOW_LOCAL = "RLRUN_ALLOW_LOCAL_PLUGINS"
"""The environment variable that `--allow-local-plugins` sets to 1, also for the processes of the job. Without
the option, it names the files that are trusted."""


def is_local_code_allowed() -> bool:
    """Returns whether the user has allowed all code that is not in an installed package."""
    return os.environ.get(ALLOW_LOCAL) == "1"


def is_file_allowed(file: Path) -> bool:
    """Returns whether the code in a file may run, in this process and in those of the job."""
    return is_local_code_allowed() or str(file) in _allowed_files()


def allow_if_trusted(file: Path, folder: Path) -> None:
    """Allows the code in a file that a spec in `folder` names, if the user trusts the folder of both."""
    if not is_file_allowed(file) and is_trusted(file, folder):
        os.environ[ALLOW_LOCAL] = os.pathsep.join([*_allowed_files(), str(file)])


def allowance() -> dict[str, str]:
    """Returns the variable for processes that do not inherit this one's environment."""
    return {ALLOW_LOCAL: os.environ[ALLOW_LOCAL]} if os.environ.get(ALLOW_LOCAL) else {}


def how_to_allow(file: Path) -> str:
    """Returns what the user can do about a file whose code may not run."""
    for trusted in trusted_folders():
        if file.absolute().is_relative_to(trusted) and (danger := danger_of(file, trusted)):
            return f"its folder is trusted, but {danger}"
    return (
        "if you trust it, say --allow-local-plugins for this command, or rlrun plugins trust "
        f"{file.parent} once and for all, or install it as a package (rlrun plugins new)"
    )


def _allowed_files() -> list[str]:
    return [name for name in os.environ.get(ALLOW_LOCAL, "").split(os.pathsep) if name]


def is_own_interpreter(python: str) -> bool:
    """Returns whether a path is this interpreter, in its own environment.

    The interpreter of another environment may be a link to the same file; its folder decides which packages
    it imports.
    """
    path, own = Path(python), Path(sys.executable)
    return path.parent == own.parent and path.resolve() == own.resolve()
