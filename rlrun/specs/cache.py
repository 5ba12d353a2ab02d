"""The folder of rlrun's cache on disk."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns `~/.cache/rlrun`, or the folder that `RLRUN_CACHE` names. It may not exist yet."""
    return Path(os.environ.get("RLRUN_CACHE") or Path.home() / ".cache" / "rlrun")
