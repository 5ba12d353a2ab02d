"""Opens files that rlrun may not have written: copied or downloaded runs, models and data."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
}


class NotRegular(OSError):
    """Raised for a pipe, a device, a folder or a socket where a regular file is expected."""

    def __init__(self, path: Path, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"it is {kind}, not a regular file", str(path))

    def __str__(self) -> str:
        return f"{self.filename} cannot be read: {self.strerror}"


def open_regular(path: Path, *, folder: int | None = None) -> BufferedReader:
    """Opens a regular file for reading. Raises OSError for anything else, which includes NotRegular.

    Opening a pipe would wait for a writer, and a device has no end. `folder` is the descriptor of the folder
    of a relative path.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise NotRegular(path, stat.S_IFSOCK) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegular(path, mode)
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, max_bytes: int, *, folder: int | None = None) -> bytes:
    """Returns the content of a regular file.

    Raises OSError as `open_regular` does, and ValueError for a file of more than `max_bytes`.
    """
    with open_regular(path, folder=folder) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes} bytes")
    return content
