"""What a server in a Python environment of its own is started with: words, variables, a death; pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

# The server dies with the thread that started it: asked of the kernel before it takes the server's place.
# What it has started by then may not have asked the same yet: a guard kills the rest of its session.
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

_OF_OUR_PYTHON = {"PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV"}
"""They would have another interpreter use the packages of ours; Ray's workers have some of them."""
_OF_OTHERS = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
"""Who has Ray's token can run anything as this user, which no server needs to."""


def mortal(words: Sequence[str]) -> list[str]:
    """The command line, an interpreter and its words, of a server that is killed when its parent ends; with
    it everything in its session, where it is started in one of its own.
    """
    return [words[0], "-c", _DIE_WITH_PARENT, *words]


def variables(own: Mapping[str, str]) -> dict[str, str]:
    """This process's variables, without Ray's token, and without those that lead Python to our packages."""
    return {name: value for name, value in own.items() if name not in _OF_OUR_PYTHON | _OF_OTHERS}


def options(arguments: Mapping[str, Any]) -> list[str]:
    """`--name value` for each; true is the bare name, false nothing, a list several values, a table JSON."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += [str(one) for one in value]
        elif isinstance(value, dict):
            words.append(json.dumps(value))
        elif value is not True:
            words.append(str(value))
    return words
