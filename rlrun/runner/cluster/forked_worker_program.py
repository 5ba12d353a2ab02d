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


def main() -> None:
    """Becomes the worker, or ends with the exit code of the fork that is the worker."""
    path, *arguments = sys.argv[1:]
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
            socket.send_fds(server, [b"\n"], [0, 1, 2])
            server.sendall(json.dumps(request).encode())
            server.shutdown(socket.SHUT_WR)
            forked = server.recv(1)
        except OSError:
            forked = b""
        if forked:
            code = server.recv(1)  # nothing if the server has died; Ray asks the fork itself how it is
            os._exit(code[0] if code else 1)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
