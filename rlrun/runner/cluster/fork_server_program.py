"""The fork server's process: imports modules once, then forks a worker of Ray for each request.

    python -P -m rlrun.runner.cluster.fork_server_program SOCKET MODULE …

It writes a byte to its standard output when it listens. A fork has one thread, so no module may have started
another one; the server then ends without listening, and each worker imports for itself. None may import Ray,
which reads the variables of its worker when it is imported.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
from contextlib import suppress
from typing import Any


def main() -> None:
    """Serves until it is killed; in a fork, runs the worker's program and returns when that ends."""
    path, *modules = sys.argv[1:]
    answer = os.dup(1)
    os.dup2(2, 1)  # modules may print while they are imported
    for module in modules:
        importlib.import_module(module)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208
        sys.exit(f"the imported modules have started {threads - 1} threads")
    os.close(os.pidfd_open(os.getpid()))  # containers may refuse it; then nobody has asked for a fork yet
    gc.freeze()  # collections in the forks leave the pages of what is imported shared
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)
        os.write(answer, b"\n")
        os.close(answer)
        request = _serve(listener)
    os.setpgid(0, 0)  # Ray may end a worker together with its process group
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _serve(listener: socket.socket) -> Any:
    """Forks a process for each request, and tells who asked for it how it ended. Returns the request in the
    forks only.
    """
    with selectors.DefaultSelector() as events:
        events.register(listener, selectors.EVENT_READ)
        while True:
            for event, _ in events.select():
                if event.fileobj is not listener:
                    events.unregister(event.fileobj)
                    _report(*event.data)
                    continue
                connection = listener.accept()[0]
                request, streams = _receive(connection)
                if not (pid := os.fork()):
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    connection.close()
                    return request
                for stream in streams:
                    os.close(stream)
                with suppress(OSError):
                    connection.sendall(b"\n")
                ended = os.pidfd_open(pid)
                events.register(ended, selectors.EVENT_READ, (pid, ended, connection))


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Returns a request, and the descriptors of its standard input, output and error."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as file:
        return json.load(file), streams


def _report(pid: int, ended: int, connection: socket.socket) -> None:
    os.close(ended)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with connection, suppress(OSError):
        connection.sendall(bytes([code if code >= 0 else 128 - code]))


if __name__ == "__main__":
    main()
