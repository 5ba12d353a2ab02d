"""The index of a run's samples: a SQLite file in the user's cache folder, since a run's folder is only read.

    files    one row per file of samples, with its size and time when it was read
    samples  one row per sample, where lists find it: file, line and what is sorted or filtered by
    groups   one row per prompt and step, for the groups whose rewards differ most

The index can be deleted at any time; it is built again from the run's folder.
"""

import errno
import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from rlrun.models.cache import private_folder
from rlrun.runner.view.summary import Summary, mean_and_spread
from rlrun.specs.step_names import Kind

_SCHEMA_VERSION = 5
_SCHEMA = """
CREATE TABLE files (
    kind TEXT, step INTEGER, size INTEGER, mtime INTEGER, samples INTEGER, problem TEXT,
    PRIMARY KEY (kind, step)
) WITHOUT ROWID;
CREATE TABLE samples (
    kind TEXT, step INTEGER, line INTEGER, id TEXT, row TEXT, dataset TEXT, reward REAL, tokens INTEGER,
    status TEXT, failed INTEGER, verdicts TEXT, version INTEGER,
    PRIMARY KEY (kind, step, line)
) WITHOUT ROWID;
CREATE INDEX by_reward ON samples (kind, reward, step, line);
CREATE INDEX by_worst ON samples (kind, reward, step DESC, line);
CREATE INDEX by_tokens ON samples (kind, tokens);
CREATE INDEX by_row ON samples (row, dataset, step);
CREATE TABLE groups (
    kind TEXT, step INTEGER, line INTEGER, row TEXT, dataset TEXT, samples INTEGER, mean REAL, spread REAL,
    PRIMARY KEY (kind, step, line)
) WITHOUT ROWID;
CREATE INDEX by_spread ON groups (kind, spread);
CREATE TABLE names (kind TEXT, field TEXT, name TEXT, PRIMARY KEY (kind, field, name)) WITHOUT ROWID;
"""


class FileKey(NamedTuple):
    """A file of samples, and what changes when it is written again."""

    kind: Kind
    step: int
    size: int
    mtime: int


def index_path(run: Path) -> Path:
    """Returns the path of a run's index in the user's cache folder."""
    name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:24]
    return private_folder("view") / f"{name}.sqlite"


class UnwritableIndex(OSError):
    """Raised if an index cannot be written, for example because the disk is full."""

    def __init__(self, path: Path, reason: Exception) -> None:
        text = f"the index of samples cannot be written ({reason}): free space there, or set RLRUN_CACHE"
        super().__init__(errno.EIO, text, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Yields an index for writing, which is created where there is none that this version can read.

    Raises UnwritableIndex; the files that were committed before remain.
    """
    try:
        index = _open_or_replace(path)
    except (OSError, sqlite3.Error) as error:
        raise UnwritableIndex(path, error) from error
    with closing(index):
        try:
            yield index
            index.commit()
        except sqlite3.Error as error:
            raise UnwritableIndex(path, error) from error


def connect(path: Path) -> sqlite3.Connection:
    """Opens an index for reading, on the thread that calls; an empty one if it is not written yet."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
        if _version(connection) != _SCHEMA_VERSION:
            raise sqlite3.DatabaseError("not written yet")
    except sqlite3.DatabaseError:
        connection = sqlite3.connect(":memory:")
        connection.executescript(_SCHEMA)
    connection.row_factory = sqlite3.Row
    return connection


def read_files(index: sqlite3.Connection) -> dict[tuple[str, int], FileKey]:
    """Returns the files that were read, by kind and step."""
    rows = index.execute("SELECT kind, step, size, mtime FROM files")
    return {(row[0], row[1]): FileKey(*row) for row in rows}


def replace_file(
    index: sqlite3.Connection, key: FileKey, samples: Iterable[tuple[int, Summary]], problem: str
) -> None:
    """Replaces everything of one file; `problem` describes what of it could not be read, "" if nothing."""
    remove_file(index, key.kind, key.step)
    lines = list(samples)
    index.executemany(
        "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(key.kind, key.step, line, item.id, item.row, item.dataset, item.reward, item.tokens),
                *(item.status, item.failed, item.verdicts, item.oldest_version),
            )
            for line, item in lines
        ],
    )
    index.executemany("INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _groups(key, lines))
    names = {(key.kind, "dataset", item.dataset) for _, item in lines if item.dataset}
    names |= {(key.kind, "status", item.status) for _, item in lines}
    index.executemany("INSERT OR IGNORE INTO names VALUES (?, ?, ?)", sorted(names))
    index.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?)", (*key, len(lines), problem))


def remove_file(index: sqlite3.Connection, kind: str, step: int) -> None:
    """Removes everything of one file."""
    for table in ("samples", "groups", "files"):
        index.execute(f"DELETE FROM {table} WHERE kind = ? AND step = ?", (kind, step))


def _groups(key: FileKey, lines: Iterable[tuple[int, Summary]]) -> list[tuple[object, ...]]:
    members: dict[tuple[str, str], list[tuple[int, float | None]]] = {}
    for line, item in lines:
        members.setdefault((item.row, item.dataset), []).append((line, item.reward))
    rows: list[tuple[object, ...]] = []
    for prompt, group in members.items():
        mean, spread = mean_and_spread(reward for _, reward in group)
        rows.append((key.kind, key.step, group[0][0], *prompt, len(group), mean, spread))
    return rows


def _make_private(path: Path) -> None:
    """Creates the file, or closes it to other users; a link or anything else but a file is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or not path.is_file():
        path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _open_or_replace(path: Path) -> sqlite3.Connection:
    _make_private(path)
    try:
        return _open(path)
    except sqlite3.OperationalError:  # a full disk, or a lock
        raise
    except sqlite3.DatabaseError:  # damaged, or not an index at all
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        _make_private(path)
        return _open(path)


def _version(index: sqlite3.Connection) -> int:
    [(version,)] = index.execute("PRAGMA user_version")
    return int(version)


def _open(path: Path) -> sqlite3.Connection:
    index = sqlite3.connect(path, timeout=10, check_same_thread=False)
    index.execute("PRAGMA journal_mode = WAL")
    index.execute("PRAGMA synchronous = OFF")  # a damaged index is built again
    if _version(index) != _SCHEMA_VERSION:
        with closing(index.cursor()) as cursor:
            for (table,) in cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                cursor.execute(f'DROP TABLE "{table}"')
            cursor.executescript(_SCHEMA)
            cursor.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        index.commit()
    return index
