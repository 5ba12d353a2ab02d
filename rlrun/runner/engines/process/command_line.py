"""Command lines and environments of servers that run in another Python environment; pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.specs.safe_python import SAFE_PATH

# Asks the kernel to kill this process when the thread that started it ends (prctl PR_SET_PDEATHSIG), then
# replaces itself with the server. Processes that the server starts do not inherit this, so a forked guard
# waits for the server's end and kills the rest of its session.
_DIE_WITH_PARENT = """
import ctypes, os, select, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
server = os.getpid()
if server != os.getsid(0) or os.fork():
    os.execv(sys.argv[1], sys.argv[1:])
try:
    select.select([os.pidfd_open(server)], [], [])
finally:
    os.killpg(server, signal.SIGKILL)
"""

_PYTHON_VARIABLES = {"PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV"}
"""These would make another interpreter import this environment's packages; Ray sets some in its workers."""
_RAY_SECRETS = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
"""A process that has Ray's token can run any code as this user, so servers do not get it."""


def die_with_parent(words: Sequence[str]) -> list[str]:
    """Returns the command line of a server that is killed when the thread that starts it ends.

    `words`: an interpreter and its arguments. Started in a session of its own, the server takes everything
    else in that session with it.
    """
    return [words[0], "-I", "-c", _DIE_WITH_PARENT, *words]


def inherited_variables(own: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's variables without Ray's token and those that select its Python packages.

    The server, which is a `python -m`, does not import modules of the current folder.
    """
    kept = {name: value for name, value in own.items() if name not in _PYTHON_VARIABLES | _RAY_SECRETS}
    return kept | SAFE_PATH


def options(arguments: Mapping[str, Any]) -> list[str]:
    """Returns `--name value` for each argument.

    True becomes the bare name, false is left out, a list becomes several values, a table becomes JSON.
    """
    words: list[str] = []
    for name, value in arguments.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += [str(item) for item in value]
        elif isinstance(value, dict):
            words.append(json.dumps(value))
        elif value is not True:
            words.append(str(value))
    return words
