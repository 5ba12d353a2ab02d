"""Reads a file of lines that a run appends to, as it grows: metrics, timelines and the texts of tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rlrun.models.foreign_files import open_regular

MAX_LINE_LENGTH = 32 << 20
"""In bytes. A line of metrics has 10 KB, and that of a long step's timeline 1 MB."""


class GrowingLines:
    """The lines of one file, each of which is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error = ""
        """Why the file cannot be read; "" if it can, or does not exist yet."""
        self.num_lines = 0
        """Complete lines that were read."""
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._is_too_long = False

    def was_replaced(self) -> bool:
        """Returns whether another file has the path now; all of its lines are new then."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        identity = (status.st_dev, status.st_ino)
        if identity == self._identity and status.st_size >= self._offset:
            return False
        self._identity, self._offset, self.num_lines, self._is_too_long = identity, 0, 0, False
        return True

    def read_new(self) -> Iterator[tuple[int, bytes]]:
        """Yields the offset and the bytes of each complete line that is new; b"" if it is too long."""
        self.error = ""
        try:
            with open_regular(self.path) as file:
                file.seek(self._offset)
                yield from self._complete_lines(file)
        except FileNotFoundError:
            return
        except OSError as error:
            self.error = f"{self.path.name} cannot be read: {error.strerror}"

    def _complete_lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        while line := file.readline(MAX_LINE_LENGTH):
            is_complete = line.endswith(b"\n")
            if not is_complete and len(line) < MAX_LINE_LENGTH and not self._is_too_long:
                return  # it is being written
            start, self._offset = self._offset, self._offset + len(line)
            if not is_complete:
                self._is_too_long = True
                continue
            self.num_lines += 1
            content, self._is_too_long = b"" if self._is_too_long else line, False
            yield start, content
