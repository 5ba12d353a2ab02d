"""Where rlrun keeps what it need not work out again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`~/.cache/rlrun`, or `RLRUN_CACHE`; it may not exist yet."""
    return Path(os.environ.get("RLRUN_CACHE") or Path.home() / ".cache" / "rlrun")
