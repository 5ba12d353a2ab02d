"""`python -m rlrun`. The current folder, with which Python begins the path then, is taken off it again."""

import os
import sys

if not sys.flags.safe_path and os.path.dirname(os.path.dirname(__file__)) != sys.path[0]:  # noqa: PTH120
    del sys.path[0]

from rlrun.cli.main import run

run()
