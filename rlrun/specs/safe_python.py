"""Starts Python such that it imports no module of the current folder, which may hold a downloaded spec.

`python -m` and `python -c` begin `sys.path` with the current folder: a `triton.py` or `json.py` beside a spec
would run in place of the installed module. `-P` prevents this in the process itself, and the variable
PYTHONSAFEPATH in all processes below it, for instance the compilers of torch and the workers of Ray.
"""

import os
import sys

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Variables for the processes of a job. Interpreters older than Python 3.11 ignore them."""


def own_python(*arguments: str) -> list[str]:
    """Returns the command line of this interpreter, without the current folder on its path."""
    return [sys.executable, "-P", *arguments]


def protect_processes() -> None:
    """Keeps the current folder off the path of every Python process that this one starts from now on."""
    os.environ.update(SAFE_PATH)
