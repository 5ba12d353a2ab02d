"""A program that Ray starts in place of a worker's interpreter, and that asks the fork server for the worker.

    forked_worker_program.py SOCKET default_worker.py ARGUMENTS …

It hands its arguments, environment, folder and standard streams over, and ends as the fork of the server
ends. Without the server it becomes the interpreter that Ray would have started. It is started without
site-packages and imports nothing of rlrun, so that it costs milliseconds; `fork_server.py` explains the rest.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence


def main() -> None:
    """Becomes the worker, or ends with the exit code of the fork that is the worker."""
    path, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as server:
        try:
            forked = ask(server, path, arguments, os.environ, (0, 1, 2))
        except OSError:
            forked = False
        if forked:
            code = server.recv(1)  # nothing if the server has died; Ray asks the fork itself how it is
            os._exit(code[0] if code else 1)
    os.execv(sys.executable, [sys.executable, *arguments])


def ask(
    server: socket.socket,
    path: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
) -> bool:
    """Asks the fork server at `path` for a fork that runs the program and arguments with these variables and
    standard streams, in this process's folder; returns whether it has forked. Its exit code follows, a byte.
    """
    request = {"arguments": list(arguments), "environment": dict(environment), "folder": os.getcwd()}  # noqa: PTH109
    server.connect(path)
    socket.send_fds(server, [b"\n"], list(streams))
    server.sendall(json.dumps(request).encode())
    server.shutdown(socket.SHUT_WR)
    return bool(server.recv(1))


if __name__ == "__main__":
    main()
