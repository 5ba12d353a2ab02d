"""Whether rlrun may run code that a spec names by its path: plugins in a file, interpreters of engines.

A spec may come from elsewhere, so that reading it must not run anything beside it. `--allow-local-plugins`
allows it; `rlrun launch` runs the interpreters of engines in any case.
"""

import os
import sys
from pathlib import Path

ALLOW_LOCAL = "RLRUN_ALLOW_LOCAL_PLUGINS"
"""The environment variable that `--allow-local-plugins` sets to 1, also for the processes of the job."""


def is_local_code_allowed() -> bool:
    """Returns whether the user has allowed code that is not in an installed package."""
    return os.environ.get(ALLOW_LOCAL) == "1"


def is_own_interpreter(python: str) -> bool:
    """Returns whether a path is this interpreter, in its own environment.

    The interpreter of another environment may be a link to the same file; its folder decides which packages
    it imports.
    """
    path, own = Path(python), Path(sys.executable)
    return path.parent == own.parent and path.resolve() == own.resolve()
