"""Keeps the index of a run up to date, in a thread: the newest files first, then whatever changes.

rollouts/ ── files that are new, changed or gone ──▶ records ──▶ summaries ──▶ index

Each file is one transaction, so that a view that is closed continues where it stopped.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from rlrun.runner.records.packed_lines import UnreadableFile, parse_record, read_lines
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.view.index import FileKey, index_path, read_files, remove_file, replace_file, writing
from rlrun.runner.view.summary import Summary, summarise
from rlrun.specs.step_names import ROLLOUTS, Kind, list_step_paths, step_name

logger = logging.getLogger(__name__)

_POLL_SECONDS = 2.0
_SETTLED_SECONDS = 30.0
"""A file that was made longer ago than this is complete."""
_FILES_PER_COMMIT = 50
_MAX_PROBLEMS = 20
"""Broken lines that are named per file."""
_SQLITE_INTEGERS = 1 << 63
"""A file's time may be beyond the year 2262, whose nanoseconds SQLite cannot store."""


@dataclass(slots=True)
class Progress:
    """How much of a run is indexed."""

    files: int = 0
    """Files of samples that the run has."""
    indexed: int = 0
    """Of these, the files whose samples a reader of the index finds."""
    error: str = ""
    """Why the index cannot be written, "" if it can."""


@dataclass(slots=True)
class _File:
    """What was read from one file."""

    samples: list[tuple[int, Summary]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Indexer:
    """The thread that indexes one run."""

    def __init__(self, folder: RunFolder, path: Path | None = None) -> None:
        """`path`: the index; None: in the user's cache folder."""
        self.path = path or index_path(folder.path)
        self.progress = Progress()
        self.ready = threading.Event()
        """Set once the newest file is indexed."""
        self._folder = folder
        self._closed = threading.Event()
        self._folder_time: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"index {folder.name}", daemon=True)

    def start(self) -> None:
        """Starts to index."""
        self._thread.start()

    def close(self) -> None:
        """Stops after the present file."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def update(self) -> None:
        """Indexes every file that is new or changed, newest first, and forgets those that are gone.

        Raises UnwritableIndex.
        """
        with writing(self.path) as index:
            self._update(index)

    def _update(self, index: sqlite3.Connection) -> None:
        known = read_files(index)
        present = {(key.kind, key.step): key for key in list_files(self._folder.rollouts)}
        for kind, step in known.keys() - present.keys():
            remove_file(index, kind, step)
        changed = [key for place, key in present.items() if known.get(place) != key]
        unchanged = len(present) - len(changed)
        self.progress.files, self.progress.indexed = len(present), unchanged
        for number, key in enumerate(sorted(changed, key=lambda key: key.step, reverse=True), start=1):
            if self._closed.is_set():
                return
            read = _read_file(self._folder.rollouts / step_name(key.step, ROLLOUTS, key.kind))
            replace_file(index, key, read.samples, "\n".join(read.problems))
            if number in (1, len(changed)) or number % _FILES_PER_COMMIT == 0:
                index.commit()
                self.progress.indexed = unchanged + number
                self.ready.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                if self._may_have_changed():
                    self.update()
                self.progress.error = ""
            except Exception as error:  # the boundary to files that may hold anything: the page shows it
                self.progress.error = str(error) if isinstance(error, OSError) else repr(error)
                self._folder_time = None
                logger.info("the samples cannot be indexed", exc_info=error)
            self.ready.set()
            self._closed.wait(_POLL_SECONDS)

    def _may_have_changed(self) -> bool:
        """Returns whether files may be new or incomplete; else the many files of a run are not listed."""
        try:
            changed = self._folder.rollouts.stat().st_mtime
        except FileNotFoundError:
            return False
        is_new = changed != self._folder_time or time.time() - changed < _SETTLED_SECONDS
        self._folder_time = changed
        return is_new


def list_files(rollouts: Path) -> Iterator[FileKey]:
    """Yields every file of samples in a run's `rollouts/`."""
    for kind in get_args(Kind):
        for step, path in list_step_paths(rollouts, ROLLOUTS, kind).items():
            try:
                status = path.stat()
            except OSError:
                continue  # a resume has moved it
            yield FileKey(kind, step, status.st_size, status.st_mtime_ns % _SQLITE_INTEGERS)


def _read_file(path: Path) -> _File:
    """Reads the summaries of a file, without its broken lines; what follows a broken block is lost."""
    file = _File()
    try:
        for number, line in read_lines(path):
            try:
                file.samples.append((number, summarise(parse_record(path, number, line))))
            except UnreadableFile as error:
                if len(file.problems) < _MAX_PROBLEMS:
                    file.problems.append(str(error))
    except UnreadableFile as error:
        file.problems.append(str(error))
    return file
